"""Checks who may call and names requests: keys, request ids, and lines of the access log without keys."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from flask import Request, Response

from corosrv.base.errors import Unauthorized
from corosrv.contracts.jobs.job import new_id
from corosrv.web.http.flood import Flood
from corosrv.web.http.hosts import Hosts
from corosrv.web.http.keys import KeyRing
from corosrv.web.http.origins import Origins

log = logging.getLogger("corosrv.http")

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SECRET_ARGUMENT = re.compile(
    r"([?&;][^=&;#]*(?:key|token|secret|auth|passw|bearer|credential|signature|jwt)[^=&;#]*=)[^&;#]*", re.IGNORECASE
)


class Keys:
    """The keys that are let in; none lets everybody in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._ring = KeyRing.of_keys(keys)
        self._refused = Flood(log, "%d requests had no key, or a wrong one")

    @property
    def are_needed(self) -> bool:
        return self._ring.are_needed

    def check(self, request: Request) -> str:
        """Returns a name for the caller, made from its key; "" where no keys are set.

        Raises Unauthorized without a good key.
        """
        if not self._ring.are_needed:
            return ""
        if (key := _bearer(request)) is None:
            self._refused.count()
            raise Unauthorized("no API key: send it as 'Authorization: Bearer KEY'")
        caller = self._ring.caller(key.encode("latin-1", "replace"))  # WSGI has a field's bytes as Latin-1
        if caller is None:
            self._refused.count()
            raise Unauthorized("this API key is not known here")
        return caller


def _bearer(request: Request) -> str | None:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key
    return request.headers.get("X-Api-Key") or None


class Access:
    """Decides who may call: by key, or where no key is asked for by the page and the host name that a browser sends."""

    def __init__(
        self, keys: Iterable[str], origins: Iterable[str], hosts: Iterable[str], leaves_origins: bool = False
    ) -> None:
        """`leaves_origins`: somebody else decides which pages may call, unless `origins` names some."""
        self._keys = Keys(keys)
        names = frozenset(origins)
        self._origins = None if leaves_origins and not names else Origins(names, is_guarded=self._keys.are_needed)
        self._hosts = Hosts(hosts)

    def check(self, request: Request) -> str:
        """Returns the caller's name, "" where no key is asked for. Raises Forbidden and Unauthorized."""
        if not self._keys.are_needed:
            self._hosts.check(request)
            if self._origins is not None:
                self._origins.check(request)
        return self._keys.check(request)

    def allow(self, request: Request, response: Response) -> None:
        """Adds the headers that let a browser show the answer to the page that asked, if that page may call."""
        if self._origins is not None:
            self._origins.allow(request, response)


def request_id(request: Request) -> str:
    """Returns the client's own id if it sent a sane one, else a new one."""
    client_id = request.environ.get("HTTP_X_REQUEST_ID", "")
    return client_id if _SANE_ID.fullmatch(client_id) else new_id("req_")


def redacted(environ: dict[str, Any]) -> dict[str, Any]:
    """Returns the request's environment for the access log, without keys in the URL or the Referer."""
    names = ("RAW_URI", "HTTP_REFERER")
    hidden = {name: _SECRET_ARGUMENT.sub(r"\1***", environ[name]) for name in names if name in environ}
    query = environ.get("QUERY_STRING", "")
    return {**environ, **hidden, "QUERY_STRING": _SECRET_ARGUMENT.sub(r"\1***", "?" + query)[1:]}
