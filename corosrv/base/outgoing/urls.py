"""URLs that requests are made to."""

from __future__ import annotations

from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str | None, int | None]  # scheme, host, port


def is_http_url(text: str) -> bool:
    """Returns whether it is an absolute http or https URL with a host, and cannot break out of a request line."""
    if not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme.lower() in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, an address with half a bracket
        return False


def origin(url: str) -> Origin:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, parts.hostname, parts.port or _PORTS.get(scheme)


def is_same_site(url: str, other: str) -> bool:
    """Returns whether `other` has the origin of `url`, or is the same host over https in place of http."""
    own, target = origin(url), origin(other)
    upgraded = ("https", own[1], _PORTS["https"]) if own[::2] == ("http", _PORTS["http"]) else own
    return target in (own, upgraded)
