"""Makes the terms of a call from the headers of a request (in gRPC, its metadata) and its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from corosrv.contracts.idempotency import HEADER as KEY_HEADER
from corosrv.contracts.idempotency import parse_key
from corosrv.contracts.jobs.job import DEFAULT_PRIORITY, LAST_PRIORITY, Terms
from corosrv.dialects.kserve.parameters import FrontParameters
from corosrv.web.http.terms import MAX_TIMEOUT_MS, PRIORITY, TIMEOUT, parse_priority, parse_timeout

Header = Callable[[str], str | None]  # looks a header up by its name

_SESSION = "X-Session-Id"
_MAX_SESSION = 200  # characters


class CallHeaders(msgspec.Struct):
    """Describes the headers that say how long a call may take, who goes before it, and what it belongs to."""

    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=LAST_PRIORITY,
            description="1 is first in the queue, 9 last; 0 is 5. The parameter `priority` goes before it",
        ),
    ] = msgspec.field(name=PRIORITY, default=0)
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_TIMEOUT_MS,
            description="Milliseconds after which the answer is of no use: the call is cancelled and answered with "
            "504. Of this and the parameter `timeout` the earlier end holds",
        ),
    ] = msgspec.field(name=TIMEOUT, default=MAX_TIMEOUT_MS)
    session: Annotated[
        str,
        Meta(
            max_length=_MAX_SESSION,
            description="Calls of one session go to the same worker where the handler asks for that. It goes before "
            "the parameter `sequence_id`",
        ),
    ] = msgspec.field(name=_SESSION, default="")


def call_terms(
    header: Header,
    front: FrontParameters,
    now: float,
    *,
    caller: str = "",
    request_id: str = "",
    session: object = "",
) -> Terms:
    """Makes the terms of a call that arrives at `now`, of time.monotonic(). Raises Refused for a header's wrong value.

    Of two time limits the earlier holds; a parameter's priority goes before a header's. `session`: the parameter
    `sequence_id`, which a header's session goes before.
    """
    limits = [None if front.timeout_us is None else front.timeout_us / 1e6, parse_timeout(header(TIMEOUT))]
    timeout = min((limit for limit in limits if limit is not None), default=None)
    return Terms(
        caller=caller,
        request_id=request_id,
        priority=front.priority or parse_priority(header(PRIORITY)) or DEFAULT_PRIORITY,
        deadline=None if timeout is None else now + timeout,
        idempotency_key=_idempotency_key(header),
        session=(header(_SESSION) or str(session))[:_MAX_SESSION],
    )


def _idempotency_key(header: Header) -> str:
    field = header(KEY_HEADER)
    return "" if field is None else parse_key(field)
