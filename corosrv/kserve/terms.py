"""Makes the terms of a call from the headers of a request (in gRPC, its metadata) and its parameters."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.http.term_headers import PRIORITY, TIMEOUT, parse_priority, parse_timeout
from corosrv.idempotency.keys import HEADER as KEY_HEADER
from corosrv.idempotency.keys import parse_key
from corosrv.jobs.terms import DEFAULT_PRIORITY, Terms
from corosrv.kserve.parameters import FrontParameters

Header = Callable[[str], str | None]  # looks a header up by its name

_MAX_SESSION = 200  # characters


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
        session=(header("X-Session-Id") or str(session))[:_MAX_SESSION],
    )


def _idempotency_key(header: Header) -> str:
    field = header(KEY_HEADER)
    return "" if field is None else parse_key(field)
