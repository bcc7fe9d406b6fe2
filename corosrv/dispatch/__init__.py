"""Permits to run jobs, and pauses between tries."""
