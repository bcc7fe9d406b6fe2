"""Delegation: other replicas answer what this one cannot, and none is asked twice for one request."""
