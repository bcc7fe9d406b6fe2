"""Serves the management API on a private socket, and the commands in front of it."""
