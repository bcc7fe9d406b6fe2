"""Answers that are kept: under idempotency keys, and as logs of events for clients that come back."""
