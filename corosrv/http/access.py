"""Who may ask, from which page, and under which name: keys, cross-origin headers, request ids."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterable
from typing import Any

from flask import Request, Response

from corosrv.errors import Unauthorized
from corosrv.http.flood import Flood

log = logging.getLogger("corosrv.http")

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
_SECRET_ARGUMENT = re.compile(r"([?&][^=&#]*(?:key|token|secret|auth|password)[^=&#]*=)[^&#]*", re.IGNORECASE)


class Keys:
    """The keys that are let in; none lets everybody in. Compared by digest, in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]
        self._refused = Flood(log, "%d requests had no key, or a wrong one")

    def check(self, request: Request) -> str:
        """Who asks: a name made from the key, "" where none is asked for. Raises Unauthorized without a good key."""
        if not self._digests:
            return ""
        if (key := _bearer(request)) is None:
            self._refused.count()
            raise Unauthorized("no API key: send it as 'Authorization: Bearer KEY'")
        digest = _digest(key)
        # All are compared, so that the time taken does not tell which one is near.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            self._refused.count()
            raise Unauthorized("this API key is not known here")
        return digest.hex()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _bearer(request: Request) -> str | None:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key
    return request.headers.get("X-Api-Key") or None


class Origins:
    """The origins that browsers may call from."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._allows_local = "localhost" in (listed := frozenset(origins))
        # The word stands for origins, and is none.
        self._origins = listed - {"localhost"}

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
        return self._allows_local and _LOCAL_ORIGIN.fullmatch(origin) is not None


def request_id(request: Request) -> str:
    """The client's own id if it sent a sane one, else a new one."""
    sent = request.headers.get("X-Request-Id", "")
    return sent if _SANE_ID.fullmatch(sent) else f"req_{secrets.token_hex(16)}"


def redacted(environ: dict[str, Any]) -> dict[str, Any]:
    """The same for the access log, without what looks like a key in the URL or in the page it came from."""
    names = ("RAW_URI", "HTTP_REFERER")
    hidden = {name: _SECRET_ARGUMENT.sub(r"\1***", environ[name]) for name in names if name in environ}
    query = environ.get("QUERY_STRING", "")
    return {**environ, **hidden, "QUERY_STRING": _SECRET_ARGUMENT.sub(r"\1***", "?" + query)[1:]}
