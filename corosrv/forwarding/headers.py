"""Decides which headers go on with a request, and which come back with its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corosrv.errors import WorkerLost
from corosrv.jobs.forward import Headers

REQUEST_ID = "X-Request-Id"

_PREFIX = "HTTP_"  # of a header's name in the WSGI environment
_ASKED = frozenset({"ACCEPT", "USER_AGENT", "TRACEPARENT", "TRACESTATE"})
_ASKED_PREFIXES = ("ANTHROPIC_", "OPENAI_", "X_")
_STAYING_PREFIXES = ("X_COROSRV_", "X_FORWARDED_")
_STAYING = frozenset({"X_REQUEST_ID", "X_API_KEY", "X_REAL_IP"})
_KEYS = ("AUTHORIZATION", "X_API_KEY")
_IDEMPOTENCY = "IDEMPOTENCY_KEY"

# Of one hop, of the server that sends it, or made anew. Which pages may read an answer is for this server to say.
_OWN_ANSWER = frozenset({
    "alt-svc", "connection", "content-encoding", "content-length", "date", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "server", "set-cookie", "strict-transport-security", "te", "trailer",
    "transfer-encoding", "upgrade", "vary", "x-request-id",
})  # fmt: skip
_OWN_ANSWER_PREFIXES = ("access-control-", "x-corosrv-")


def request_headers(
    environ: Mapping[str, Any], request_id: str, *, passes_keys: bool, passes_idempotency: bool = False
) -> Headers:
    """Returns the headers that go on to an upstream.

    `passes_keys`: the client's key is not for this server, so that it may be for the upstream. `passes_idempotency`:
    this server keeps no answers under idempotency keys.
    """
    one_hop = {name.strip().upper().replace("-", "_") for name in environ.get("HTTP_CONNECTION", "").split(",")}
    names = [name.removeprefix(_PREFIX) for name in environ if name.startswith(_PREFIX)]
    passing = [name for name in names if _goes_on(name) and name not in one_hop]
    if passes_keys:
        passing += [name for name in _KEYS if name in names and name not in one_hop]
    if passes_idempotency and _IDEMPOTENCY in names:
        passing.append(_IDEMPOTENCY)
    return (
        ("Content-Type", environ.get("CONTENT_TYPE") or "application/json"),
        *((_spelt(name), environ[_PREFIX + name]) for name in passing),
        ("Accept-Encoding", "identity"),
        (REQUEST_ID, request_id),
    )


def _goes_on(name: str) -> bool:
    if name in _STAYING or name.startswith(_STAYING_PREFIXES):
        return False
    return name in _ASKED or name.startswith(_ASKED_PREFIXES)


def _spelt(name: str) -> str:
    """Writes a name of the WSGI environment as headers have it: `X_STAINLESS_OS` is `X-Stainless-Os`."""
    return "-".join(word.capitalize() for word in name.split("_"))


def answer_headers(headers: Headers) -> list[tuple[str, str]]:
    """Returns the headers of an upstream's answer that come back to the client.

    Raises WorkerLost for an answer that is compressed, which was not asked for.
    """
    one_hop: set[str] = set()
    for name, value in headers:
        if name.lower() == "connection":
            one_hop |= {word.strip().lower() for word in value.split(",")}
    _check_encoding(value for name, value in headers if name.lower() == "content-encoding")
    return [(name, value) for name, value in headers if _comes_back(name.lower(), value, one_hop)]


def _comes_back(name: str, value: str, one_hop: set[str]) -> bool:
    if name in _OWN_ANSWER or name in one_hop or name.startswith(_OWN_ANSWER_PREFIXES):
        return False
    return value.isprintable()  # a folded field would begin a new line here


def _check_encoding(encodings: Iterable[str]) -> None:
    for encoding in encodings:
        if encoding.strip().lower() not in ("", "identity"):
            raise WorkerLost(f"the upstream compressed its answer ({encoding[:40]}), which was not asked for")


def media_type(headers: Headers) -> str:
    """Returns the type of an answer without its parameters, in lower case; empty where it has none."""
    value = next((value for name, value in headers if name.lower() == "content-type"), "")
    return value.partition(";")[0].strip().lower()
