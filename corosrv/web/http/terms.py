"""Says on which terms the job of a request waits and runs: who asks, how urgent it is, and how long it is of use."""

from __future__ import annotations

from time import monotonic
from typing import Annotated

import msgspec
from flask import g, request
from msgspec import Meta

from corosrv.contracts.jobs import Terms
from corosrv.contracts.jobs.job import DEFAULT_PRIORITY, LAST_PRIORITY
from corosrv.web.http.callers import caller
from corosrv.web.http.lean_flask import current
from corosrv.web.http.term_headers import MAX_TIMEOUT_MS, PRIORITY, TIMEOUT, parse_priority, parse_timeout


class QueueHeaders(msgspec.Struct):
    """Headers that say how long a request may wait, and who goes before it; see request_terms."""

    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=LAST_PRIORITY,
            description="1 is first in the queue, 9 last; 0 is 5. The body's `priority` goes before it",
        ),
    ] = msgspec.field(name=PRIORITY, default=0)
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_TIMEOUT_MS,
            description="Milliseconds after which the answer is of no use: the request ends with 503 if it waits for "
            "a slot by then, else with 504, or the stream with an error",
        ),
    ] = msgspec.field(name=TIMEOUT, default=MAX_TIMEOUT_MS)


def request_terms(priority: int | None = None, timeout_s: float | None = None) -> Terms:
    """Returns the terms of the request at hand.

    `priority`: the body's, which goes before the header's; 0 and None say nothing. `timeout_s`: seconds that the body
    gives the request; the earlier end counts. Raises Refused, which names the header.
    """
    notes, environ = current(g), current(request).environ
    limits = [timeout_s, parse_timeout(environ.get("HTTP_X_REQUEST_TIMEOUT_MS"))]
    timeout = min((limit for limit in limits if limit is not None), default=None)
    return Terms(
        caller=caller(),
        request_id=notes.get("corosrv_request_id", ""),
        priority=priority or parse_priority(environ.get("HTTP_X_PRIORITY")) or DEFAULT_PRIORITY,
        deadline=None if timeout is None else arrival() + timeout,
    )


def arrival() -> float:
    """Returns when the request at hand arrived, of time.monotonic(): its deadline counts from there."""
    return float(current(g).get("corosrv_began") or monotonic())
