"""Addresses to listen on, tried before they are needed."""

from __future__ import annotations

import socket


def unresolvable(host: str) -> str | None:
    """Returns why no address is known for a host; None where one is."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def fault(host: str, port: int) -> str | None:
    """Returns why no server could listen there now; None where one could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None
