"""Requests that go on to upstreams as they were sent, and answers that come back as they were given."""
