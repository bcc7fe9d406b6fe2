"""Checks who may call, and names requests: keys, hosts, pages of browsers, request ids, and lines of the access log.

Where no key is asked for, a browser on this machine must not let any page call: the `Host` that it sends has to be one
of this server's, and its `Origin` an allowed one. Pages that may call get the cross-origin headers that browsers wait
for. Keys never reach the log. The `Entrance` does all of this for one request, whether Flask answers it or not.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from flask import Request, Response

from corosrv.base.errors import Forbidden, Unauthorized
from corosrv.contracts.jobs.job import new_id
from corosrv.contracts.jobs.terms import TRACE, Flow
from corosrv.web.accounts import Accounts
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import VISIT, AnyRequest, BareRequest, Visit
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.reply import Flood
from corosrv.web.http.terms import FROM_BATCH, FROM_CALLER, FROM_WORKER
from corosrv.web.inference_gateway import FAIRNESS_FIELD, OBJECTIVE_FIELD, InferenceGateway
from corosrv.web.key_account import KeyAccount
from corosrv.web.keys import key_of

log = logging.getLogger("corosrv.http")

_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::\d*)?")
# Names that only a machine's own resolver or its network's gives out.
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa")


class Hosts:
    """The host names that requests to a loopback address may carry where no API key is asked for.

    A web page can have its own name resolve to the loopback address (DNS rebinding). The browser then takes this
    server for the page's own and lets the page read every answer. Its requests still carry that name as their Host.
    Local names and addresses always pass, because no foreign page can have them: names without a dot, those of
    localhost, `.local` and `.internal`, loopback and private addresses. A server that listens elsewhere without keys
    was opened to everybody, under whatever name the network gives it.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """`names` are those that the operator allows: as they are, `*.example.com` for all below, `*` for any."""
        self._names = frozenset(name.lower() for name in names)
        self._suffixes = tuple(name[1:] for name in self._names if name.startswith("*."))
        self._is_strict = bool(self._names)
        self._is_allowed = lru_cache(maxsize=256)(self._look)  # most clients send the same few names

    def check(self, request: AnyRequest) -> None:
        """Raises Forbidden for a name that this server may not be called by. Requests without a Host pass.

        Where the operator named hosts they are checked on every address.
        """
        host = request.environ.get("HTTP_HOST")
        if "*" in self._names or not host or self._is_allowed(host):
            return
        if not self._is_strict and not came_by_loopback(request):
            return
        raise Forbidden(
            f"host {host[:200]} is not allowed on a server without API keys; add it to COROSRV_ALLOWED_HOSTS",
            "host_not_allowed",
        )

    def _look(self, host: str) -> bool:
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = (parts["ipv6"] or parts["name"]).lower().removesuffix(".")
        if name in self._names or name.endswith(self._suffixes):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return "." not in name or name.endswith(_LOCAL_SUFFIXES)
        return address.is_private or address.is_loopback


def came_by_loopback(request: AnyRequest) -> bool:
    """Returns whether the client connected to a loopback address, as far as the web server tells."""
    socket = request.environ.get("gunicorn.socket")
    try:
        address = socket.getsockname()[0] if socket else request.environ.get("SERVER_NAME", "")
        return ipaddress.ip_address(address).is_loopback
    except (OSError, ValueError, IndexError):
        return False


_LOCAL = re.compile(
    r"https?://(localhost|[a-z0-9-]+\.localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?"
    # Desktop apps that are made of web pages: no web site can have such an origin.
    r"|(app|file|tauri|vscode-webview|vscode-file)://[A-Za-z0-9._-]*"
)
_FIELD_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,4096}")
_METHODS = "GET, POST, PUT, DELETE, OPTIONS"
# Browsers hide every other header of an answer from the page's own code.
_EXPOSED = (
    "X-Request-Id, Request-Id, Retry-After, Idempotency-Replayed, X-Should-Retry, X-Corosrv-Ignored, "
    "X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests, X-RateLimit-Reset-Requests, "
    "X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, X-RateLimit-Reset-Tokens"
)


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

    def check(self, request: AnyRequest) -> None:
        """Raises Forbidden for a request that a browser sends on behalf of a page that may not call.

        Requests without an Origin pass: other programs send none, and browsers leave it out only where the page
        cannot read the answer, or is of this server.
        """
        origin = request.environ.get("HTTP_ORIGIN")
        if not origin or self._is_allowed(origin) or _is_own(request, origin):
            return
        raise Forbidden(
            f"origin {origin[:200]} is not allowed on a server without API keys; add it to COROSRV_CORS_ORIGINS",
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


def _is_own(request: AnyRequest, origin: str) -> bool:
    """Returns whether the page came from this server, as GET /docs does.

    Behind a proxy that sends a Host of its own the browser's word counts, which no page can set.
    """
    if request.environ.get("HTTP_SEC_FETCH_SITE") == "same-origin":
        return True
    host = request.environ.get("HTTP_HOST")
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


_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SECRET_ARGUMENT = re.compile(
    r"([?&;][^=&;#]*(?:key|token|secret|auth|passw|bearer|credential|signature|jwt)[^=&;#]*=)[^&;#]*", re.IGNORECASE
)


class Keys:
    """The keys that are let in."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._refused = Flood(log, "%d requests had no key, or a wrong one")

    def check(self, request: AnyRequest) -> tuple[str, KeyAccount]:
        """Returns a name for the caller, made from its key, and the key's account.

        May wait while the keys are read again. Raises Unauthorized without a good key.
        """
        environ = request.environ
        key = key_of(environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_API_KEY", ""))
        if key is None:
            self._refused.count()
            raise Unauthorized("no API key: send it as 'Authorization: Bearer KEY'")
        caller, account = self._accounts.find(key)
        if account is None:
            self._refused.count()
            raise Unauthorized("this API key is not known here")
        if account.is_expired:
            self._refused.count()
            raise Unauthorized("this API key has expired")
        return caller, account


class Access:
    """Decides who may call: by key, or where no key is asked for by the page and the host name that a browser sends."""

    def __init__(
        self, accounts: Accounts, origins: Iterable[str], hosts: Iterable[str], leaves_origins: bool = False
    ) -> None:
        """`leaves_origins`: somebody else decides which pages may call, unless `origins` names some."""
        self._accounts = accounts
        self._keys = Keys(accounts)
        names = frozenset(origins)
        self._origins = None if leaves_origins and not names else Origins(names, is_guarded=accounts.are_needed)
        self._hosts = Hosts(hosts)

    def check(self, request: AnyRequest) -> tuple[str, KeyAccount | None]:
        """Returns the caller's name and account; ("", None) where no key is asked for.

        May wait while the keys are read again. Raises Forbidden and Unauthorized.
        """
        if self._accounts.are_needed:
            return self._keys.check(request)
        self._hosts.check(request)
        if self._origins is not None:
            self._origins.check(request)
        return "", None

    def allow(self, request: Request, response: Response) -> None:
        """Adds the headers that let a browser show the answer to the page that asked, if that page may call."""
        if self._origins is not None and "HTTP_ORIGIN" in request.environ:
            self._origins.allow(request, response)


def request_id(request: AnyRequest) -> str:
    """Returns the client's own id if it sent a sane one, else a new one."""
    client_id = request.environ.get("HTTP_X_REQUEST_ID", "")
    return client_id if _SANE_ID.fullmatch(client_id) else new_id("req_")


def without_secrets(url: str) -> str:
    """Returns a URL with asterisks in place of keys among its arguments."""
    return _SECRET_ARGUMENT.sub(r"\1***", url) if "=" in url else url


def redacted(environ: dict[str, Any]) -> dict[str, Any]:
    """Returns the request's environment for gunicorn's access log, without keys in the URL or the Referer."""
    names = ("RAW_URI", "HTTP_REFERER")
    hidden = {name: without_secrets(environ[name]) for name in names if name in environ}
    query = environ.get("QUERY_STRING", "")
    return {**environ, **hidden, "QUERY_STRING": without_secrets("?" + query)[1:]}


class Entrance:
    """The checks of every request of a server, and what every answer has; see corosrv.gateway.forwarding.forwarder."""

    def __init__(
        self,
        stats: HttpStats,
        bodies: BodyReader,
        access: Access,
        accounts: Accounts,
        has_access_log: bool,
        start: Callable[[], None],
        gateway: InferenceGateway,
    ) -> None:
        """`start`: starts the server, with its first request at the latest."""
        self._stats = stats
        self._bodies = bodies
        self._access = access
        self._accounts = accounts
        self._has_access_log = has_access_log
        self._start = start
        self._gateway = gateway

    def open(self, request: BareRequest) -> Visit | None:
        """Begins a visit, which is to be left or to get an error; None where Flask has to begin it.

        It is in the environment from now on, where `Server` finds it if Flask has to answer it after all.
        """
        environ = request.environ
        if self._has_access_log and TRACE not in environ:
            return None  # its trace ends with Flask's response
        self._start()
        self._stats.begin_work()
        visit = environ[VISIT] = Visit(request_id(request), time.monotonic())
        return visit

    def admit(self, request: AnyRequest, visit: Visit) -> None:
        """Checks the host and the key of a request, and counts it. May wait while keys are read again.

        Raises Forbidden, Unauthorized, LimitReached, and Refused for a header of the gateway.
        """
        owner = request.environ.get(FROM_BATCH, request.environ.get(FROM_CALLER))
        if owner is None:
            visit.caller, visit.account = self._access.check(request)
            visit.flow = self.flow_of(request.environ)
        else:
            visit.caller, visit.account = owner, self._accounts.account_of(owner)
        if visit.account is not None and FROM_WORKER not in request.environ:
            visit.account.admit(request.environ["REQUEST_METHOD"])

    def passed_on(self, caller: str, counts_answers: bool) -> KeyAccount | None:
        """Returns the account of a caller whose request a peer passes on; see Accounts.passed_on."""
        return self._accounts.passed_on(caller, counts_answers)

    def flow_of(self, environ: dict[str, Any]) -> Flow | None:
        """Returns what a gateway says of a request, if one may; see InferenceGateway. Raises Refused."""
        is_told = FAIRNESS_FIELD in environ or OBJECTIVE_FIELD in environ
        return self._gateway.flow_of(environ) if is_told else self._gateway.usual_flow

    def headers(self, visit: Visit) -> list[tuple[str, str]]:
        """Returns what an answer gets besides its own headers."""
        headers = [("X-Request-Id", visit.request_id)]
        if visit.account is not None and visit.account.entry.has_limits:
            headers += visit.account.headers()
        return headers

    def leave(self, request: BareRequest, visit: Visit, route: str, status: int) -> None:
        """Ends a visit that was answered; its stream may have begun. `status` 0: it was not."""
        environ = request.environ
        environ.pop(VISIT, None)
        self._stats.end_work()
        self._bodies.release(request)
        if status:
            self._stats.count_answer(route, status)
            if (trace := environ.get(TRACE)) is not None:
                trace.describe(visit, route)
