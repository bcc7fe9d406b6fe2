"""Checks which web pages may call by their `Origin`, and adds the cross-origin headers that browsers wait for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from flask import Request, Response

from corosrv.base.errors import Forbidden

_LOCAL = re.compile(
    r"https?://(localhost|[a-z0-9-]+\.localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?"
    # Desktop apps that are made of web pages: no web site can have such an origin.
    r"|(app|file|tauri|vscode-webview|vscode-file)://[A-Za-z0-9._-]*"
)
_FIELD_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,4096}")
_METHODS = "GET, POST, PUT, DELETE, OPTIONS"
# Browsers hide every other header of an answer from the page's own code.
_EXPOSED = "X-Request-Id, Request-Id, Retry-After, Idempotency-Replayed, X-Should-Retry, X-Corosrv-Ignored"


class Origins:
    """The origins whose pages may call: those that the operator names, otherwise any or the local ones.

    An operator names origins as browsers send them (`https://page.example`), `localhost` for every local one and `*`
    for any. Where none is named, `is_guarded` decides: with API keys any page may call, for it has to have a key;
    without them only local ones, for a browser lends the address of its machine to every page.
    """

    def __init__(self, origins: Iterable[str], *, is_guarded: bool) -> None:
        origin_names = frozenset(origins) or {"*" if is_guarded else "localhost"}
        self._allows_any = "*" in origin_names
        self._allows_local = "localhost" in origin_names
        self._names = origin_names - {"*", "localhost"}

    def check(self, request: Request) -> None:
        """Raises Forbidden for a request that a browser sends on behalf of a page that may not call.

        Requests without an Origin pass: other programs send none, and browsers leave it out only where the page
        cannot read the answer, or is of this server.
        """
        origin = request.environ.get("HTTP_ORIGIN")
        if not origin or self._is_allowed(origin) or _is_own(request, origin):
            return
        raise Forbidden(
            f"pages of {origin[:200]} may not call this server, which asks for no API key: "
            "its operator can name them in COROSRV_CORS_ORIGINS",
            "origin_not_allowed",
        )

    def allow(self, request: Request, response: Response) -> None:
        """Adds the cross-origin headers to an answer for an allowed origin, errors and streams included."""
        origin = request.environ.get("HTTP_ORIGIN")
        if not origin:
            return
        response.vary.add("Origin")
        if not self._is_allowed(origin):
            return
        response.headers["Access-Control-Allow-Origin"] = origin
        if origin in self._names:
            response.headers["Access-Control-Allow-Credentials"] = "true"
        if request.method == "OPTIONS":
            _answer_preflight(request, response)
        else:
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED

    def _is_allowed(self, origin: str) -> bool:
        if self._allows_any or origin in self._names:
            return True
        return self._allows_local and _LOCAL.fullmatch(origin) is not None


def _is_own(request: Request, origin: str) -> bool:
    """Returns whether the page came from this server, as GET /docs does.

    Behind a proxy that sends a Host of its own the browser's word counts, which no page can set.
    """
    if request.headers.get("Sec-Fetch-Site") == "same-origin":
        return True
    host = request.headers.get("Host")
    return bool(host) and origin.partition("://")[2] == host


def _answer_preflight(request: Request, response: Response) -> None:
    """Allows the methods of this path and the headers that the browser asks for.

    By name, because browsers do not count Authorization, nor anything that is sent with credentials, under `*`.
    """
    names = request.headers.get("Access-Control-Request-Headers", "")
    response.headers["Access-Control-Allow-Methods"] = response.headers.get("Allow") or _METHODS
    if _FIELD_NAMES.fullmatch(names):
        response.headers["Access-Control-Allow-Headers"] = names
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        response.headers["Access-Control-Allow-Private-Network"] = "true"
    response.headers["Access-Control-Max-Age"] = "600"
    response.vary.add("Access-Control-Request-Headers")
