"""Who may ask, from which page, and under which name: keys, cross-origin headers, request ids."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from flask import Request, Response

from corosrv.errors import Unauthorized

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1"}


class Keys:
    """The keys that are let in; none lets everybody in. Compared by digest, in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def check(self, request: Request) -> None:
        """Raises Unauthorized unless the request carries one of the keys."""
        if not self._digests:
            return
        if (key := _bearer(request)) is None:
            raise Unauthorized("no API key: send it as 'Authorization: Bearer KEY'")
        # All are compared, so that the time taken does not tell which one is near.
        if not sum(hmac.compare_digest(_digest(key), known) for known in self._digests):
            raise Unauthorized("this API key is not known here")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def caller(request: Request) -> bytes:
    """Who asks, as far as the key tells: equal for two requests with the same key. Not the key itself."""
    return _digest(_bearer(request) or "")


def _bearer(request: Request) -> str | None:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key
    return request.headers.get("X-Api-Key") or None


class Origins:
    """The origins that browsers may call from."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def allow(self, request: Request, response: Response) -> None:
        """Adds the cross-origin headers to an answer for an allowed origin, errors and streams included."""
        origin = request.headers.get("Origin")
        if not origin:
            return
        response.vary.add("Origin")
        if not self._is_allowed(origin):
            return
        response.headers["Access-Control-Allow-Origin"] = origin
        if "*" in self._origins:
            response.headers["Access-Control-Allow-Credentials"] = "true"
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE, OPTIONS"
            # By name: browsers do not count Authorization under `*`.
            response.headers["Access-Control-Allow-Headers"] = "authorization, content-type, x-api-key"
            response.headers["Access-Control-Max-Age"] = "86400"

    def _is_allowed(self, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        try:
            return "localhost" in self._origins and urlsplit(origin).hostname in _LOCAL_HOSTS
        except ValueError:
            return False


def request_id(request: Request) -> str:
    """The client's own id if it sent a sane one, else a new one."""
    sent = request.headers.get("X-Request-Id", "")
    return sent if _SANE_ID.fullmatch(sent) else f"req_{secrets.token_hex(16)}"
