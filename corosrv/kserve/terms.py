"""The terms of a call, from the headers of a request (in gRPC, its metadata) and from its parameters."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.errors import Refused
from corosrv.jobs.terms import DEFAULT_PRIORITY, Terms
from corosrv.kserve.parameters import FrontParameters, priority, timeout

Header = Callable[[str], str | None]  # looks a header up by its name

_MAX_DIGITS = 15  # of a number in a header
_MAX_SESSION = 200  # characters
_MAX_KEY = 200  # characters


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
    limits = [front.timeout_us, _header_timeout(header)]
    timeout_us = min((limit for limit in limits if limit is not None), default=None)
    return Terms(
        caller=caller,
        request_id=request_id,
        priority=front.priority or _header_priority(header) or DEFAULT_PRIORITY,
        deadline=None if timeout_us is None else now + timeout_us / 1e6,
        idempotency_key=_idempotency_key(header),
        session=(header("X-Session-Id") or str(session))[:_MAX_SESSION],
    )


def _idempotency_key(header: Header) -> str:
    key = header("Idempotency-Key") or ""
    if len(key) > _MAX_KEY:
        raise Refused(f"the header Idempotency-Key has more than {_MAX_KEY} characters", "Idempotency-Key")
    return key


def _header_timeout(header: Header) -> int | None:
    """Returns microseconds."""
    milliseconds = timeout(_integer(header, "X-Request-Timeout-Ms"), "the header X-Request-Timeout-Ms")
    return None if milliseconds is None else milliseconds * 1000


def _header_priority(header: Header) -> int:
    return priority(_integer(header, "X-Priority"), "the header X-Priority")


def _integer(header: Header, name: str) -> int:
    text = (header(name) or "0").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise Refused(f"the header {name} is no integer from 0 on", name)
    return int(text)
