"""Shows a Redis server's URL to people without what is secret in it."""

from __future__ import annotations

from urllib.parse import urlsplit


def public_address(url: str) -> str:
    """Returns the host and port of a Redis URL, or the path of its socket: no password, and no parameters."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return parts.path
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        return "a Redis server"
