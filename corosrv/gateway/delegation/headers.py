"""Names the headers that replicas send each other, and makes those of a request that goes on to a peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corosrv.contracts.jobs.infer import AnswerHead, Headers
from corosrv.gateway.delegation.trip import HOPS, PATH
from corosrv.gateway.forwarding.headers import request_headers

TOKEN = "X-Corosrv-Token"
CALLER = "X-Corosrv-Caller"  # the name made from the client's key; never the key
ELAPSED = "X-Corosrv-Elapsed-Ms"  # milliseconds since the request came: its time limit counts from there
SERVED_BY = "X-Corosrv-Served-By"
ENVIRON_OF = {name: f"HTTP_{name.upper().replace('-', '_')}" for name in (TOKEN, HOPS, PATH, CALLER, ELAPSED)}

# Beside those that go on to upstreams: peers take bodies as clients send them, compressed or with a binary tail.
_ALSO = ("Content-Encoding", "Inference-Header-Content-Length", "Prefer")


def strip(environ: dict[str, Any]) -> None:
    """Removes what peers alone may say from a client's request."""
    for name in ENVIRON_OF.values():
        environ.pop(name, None)


def onward_headers(
    environ: Mapping[str, Any], request_id: str, caller: str, token: str, *, passes_keys: bool
) -> Headers:
    """Returns the headers of a request to a peer, but for those of the trip.

    `passes_keys`: the client's key is not for this server, so that it may be for an upstream of the peer.
    """
    also = tuple((name, environ[field]) for name in _ALSO if (field := _field(name)) in environ)
    peers = ((TOKEN, token), (CALLER, caller)) if caller else ((TOKEN, token),)
    return (*request_headers(environ, request_id, passes_keys=passes_keys, passes_idempotency=True), *also, *peers)


def _field(name: str) -> str:
    return f"HTTP_{name.upper().replace('-', '_')}"


def header_of(head: AnswerHead, name: str) -> str:
    """Returns a header of an answer; an empty text if it has none."""
    return next((value for field, value in head.headers if field.lower() == name.lower()), "")
