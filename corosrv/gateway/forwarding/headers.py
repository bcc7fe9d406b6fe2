"""Decides which headers go on with a request, and which come back with its answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from corosrv.base.errors import WorkerLost
from corosrv.contracts.jobs.infer import Headers

REQUEST_ID = "X-Request-Id"

_PREFIX = "HTTP_"  # of a header's name in the WSGI environment
_ASKED = frozenset({"ACCEPT", "USER_AGENT", "TRACEPARENT", "TRACESTATE"})
_ASKED_PREFIXES = ("ANTHROPIC_", "OPENAI_", "X_")
_STAYING_PREFIXES = ("X_COROSRV_", "X_FORWARDED_")
# A conversation's stream is resumed here.
_STAYING = frozenset({"X_REQUEST_ID", "X_API_KEY", "X_REAL_IP", "X_CONVERSATION_ID"})
_KEYS = ("HTTP_AUTHORIZATION", "HTTP_X_API_KEY")
_IDEMPOTENCY = ("HTTP_IDEMPOTENCY_KEY", "HTTP_LAST_EVENT_ID")
_MAX_KNOWN = 256  # names whose fate is remembered, of those that clients and upstreams choose

# What an answer says of itself comes back. What it says to browsers and proxies of a whole site does not (cookies, what
# they cache, report, load, or allow pages to do): this server's pages and other upstreams have the same site.
_ANSWER = frozenset({
    "accept-ranges", "allow", "cache-control", "content-disposition", "content-language", "content-range",
    "content-type", "deprecation", "etag", "expires", "idempotency-replayed", "inference-header-content-length",
    "last-modified", "location", "pragma", "preference-applied", "process-start-time-unix", "ratelimit", "request-id",
    "retry-after", "server-timing", "sunset", "traceparent", "traceresponse", "tracestate",
})  # fmt: skip
_ANSWER_PREFIXES = ("anthropic-", "llm-", "openai-", "ratelimit-", "x-")
_STAYING_ANSWER = frozenset({
    "x-content-security-policy", "x-dns-prefetch-control", "x-frame-options", "x-lighttpd-send-file", "x-pingback",
    "x-request-id", "x-reproxy-url", "x-sourcemap", "x-webkit-csp", "x-xss-protection",
})  # fmt: skip
_STAYING_ANSWER_PREFIXES = ("x-accel-", "x-corosrv-", "x-permitted-", "x-sendfile", "x-ua-")


def request_headers(
    environ: Mapping[str, Any], request_id: str, *, passes_keys: bool, passes_idempotency: bool = False
) -> Headers:
    """Returns the headers that go on to an upstream.

    `passes_keys`: the client's key is not for this server, so that it may be for the upstream. `passes_idempotency`:
    this server keeps no answers under idempotency keys.
    """
    connection = environ.get("HTTP_CONNECTION", "")
    one_hop = {_field(name.strip()) for name in connection.split(",")} if connection not in ("", "keep-alive") else ()
    passing = [field for field in environ if _goes_on(field)]
    if passes_keys:
        passing += [field for field in _KEYS if field in environ]
    if one_hop:
        passing = [field for field in passing if field not in one_hop]
    if passes_idempotency:
        passing += [field for field in _IDEMPOTENCY if field in environ]
    return (
        ("Content-Type", environ.get("CONTENT_TYPE") or "application/json"),
        *[(_spelt(field), environ[field]) for field in passing],
        ("Accept-Encoding", "identity"),
        (REQUEST_ID, request_id),
    )


def _field(name: str) -> str:
    """Writes a header's name as the WSGI environment has it."""
    return _PREFIX + name.upper().replace("-", "_")


@lru_cache(_MAX_KNOWN)
def _goes_on(field: str) -> bool:
    """Tells whether a member of the WSGI environment is a header that goes on."""
    if not field.startswith(_PREFIX):
        return False
    name = field.removeprefix(_PREFIX)
    if name in _STAYING or name.startswith(_STAYING_PREFIXES):
        return False
    return name in _ASKED or name.startswith(_ASKED_PREFIXES)


@lru_cache(_MAX_KNOWN)
def _spelt(field: str) -> str:
    """Writes a name of the WSGI environment as headers have it: `HTTP_X_STAINLESS_OS` is `X-Stainless-Os`."""
    return "-".join(word.capitalize() for word in field.removeprefix(_PREFIX).split("_"))


def answer_headers(headers: Headers) -> list[tuple[str, str]]:
    """Returns the headers of an upstream's answer that come back to the client.

    Raises WorkerLost for an answer that is compressed, which was not asked for.
    """
    one_hop: set[str] = set()
    returning = []
    for name, value in headers:
        if _comes_back(name):
            if value.isprintable():  # a folded field would begin a new line here
                returning.append((name, value))
        elif (key := name.lower()) == "connection":
            one_hop |= {word.strip().lower() for word in value.split(",")}
        elif key == "content-encoding" and value.strip().lower() not in ("", "identity"):
            raise WorkerLost(f"the upstream compressed its answer ({value[:40]}), which was not asked for")
    return [field for field in returning if field[0].lower() not in one_hop] if one_hop else returning


@lru_cache(_MAX_KNOWN)
def _comes_back(name: str) -> bool:
    name = name.lower()
    if name in _STAYING_ANSWER or name.startswith(_STAYING_ANSWER_PREFIXES):
        return False
    return name in _ANSWER or name.startswith(_ANSWER_PREFIXES)


def media_type(headers: Headers) -> str:
    """Returns the type of an answer without its parameters, in lower case; empty where it has none."""
    value = next((value for name, value in headers if name.lower() == "content-type"), "")
    return value.partition(";")[0].strip().lower()
