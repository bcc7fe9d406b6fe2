"""Reads what a request asks of the front: parameters and headers (in gRPC, metadata) that handlers do not see.

They make the terms of the call, say which capability it asks for, and fill inputs that refer to an object with its
content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from corosrv.base.errors import InvalidTensor, Refused
from corosrv.contracts.idempotency import HEADER as KEY_HEADER
from corosrv.contracts.idempotency import parse_key
from corosrv.contracts.jobs.infer import CapabilityTarget, ObjRef
from corosrv.contracts.jobs.terms import (
    DEFAULT_PRIORITY,
    FIRST_PRIORITY,
    LAST_PRIORITY,
    MAX_TIMEOUT_MS,
    PRIORITY,
    TIMEOUT,
    Terms,
    TracePart,
    parse_priority,
    parse_timeout,
)
from corosrv.formats.tensors import Parameter
from corosrv.web.inference_gateway import FAIRNESS_ID, OBJECTIVE
from corosrv.workers.dispatch.capability import header_query

OBJECT_REF = "object_ref"  # the parameter of such an input


def object_id(name: str, ref: object) -> str:
    """Returns the id in a reference, which is an id by itself or the JSON of an ObjRef. Raises InvalidTensor."""
    if not isinstance(ref, str):
        raise InvalidTensor(name, f"has the {OBJECT_REF} {ref!r:.80}, which is no text")
    if not ref:
        raise InvalidTensor(name, f"has an empty {OBJECT_REF}, which names no object")
    if not ref.startswith("{"):
        return ref
    try:
        return msgspec.json.decode(ref, type=ObjRef).id
    except msgspec.MsgspecError as error:
        raise InvalidTensor(name, f"has an {OBJECT_REF} that is no reference: {error}") from None


_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**64 - 1


@dataclass(frozen=True, slots=True)
class FrontParameters:
    """Says how a call is to be made and answered. `timeout_us`: microseconds for the whole call; None: no limit."""

    timeout_us: int | None = None
    priority: int = 0  # 1 runs first, 9 last; 0 leaves it to the server
    is_binary: bool = False  # outputs that say nothing else come in the binary tail
    wants_empty_final: bool = False  # a stream of gRPC ends in an answer without outputs, if no other was final


_NONE = FrontParameters()


def split_parameters(parameters: Mapping[str, Parameter]) -> tuple[FrontParameters, Mapping[str, Parameter]]:
    """Returns what a request's parameters ask of the front, and those that are left for the handler.

    Raises Refused for a wrong type, and for a number out of range.
    """
    if not parameters:
        return _NONE, parameters
    for name, value in parameters.items():
        if type(value) is int and not _LEAST_INTEGER <= value <= _MOST_INTEGER:
            raise Refused(f"the parameter {name[:120]!r} needs more than 64 bits", f"parameters.{name[:120]}")
    front = FrontParameters(
        timeout_us=_timeout(parameters.get("timeout", 0)),
        priority=_priority(parameters.get("priority", 0)),
        is_binary=_boolean(parameters, "binary_data_output"),
        wants_empty_final=_boolean(parameters, "triton_enable_empty_final_response"),
    )
    return front, {name: value for name, value in parameters.items() if not _is_of_front(name)}


def _is_of_front(name: str) -> bool:
    return name in ("timeout", "priority", "binary_data_output") or name.startswith("triton_")


def _timeout(value: Parameter) -> int | None:
    """Returns microseconds, None for 0, which sets no limit. Raises Refused."""
    if type(value) is not int or value < 0:
        raise Refused("the parameter 'timeout' is no integer from 0 on", "timeout")
    return value or None


def _priority(value: Parameter) -> int:
    """Returns a priority, 0 where the request leaves it to the server. Raises Refused."""
    if type(value) is not int or not 0 <= value <= LAST_PRIORITY:
        words = f"from {FIRST_PRIORITY} (first) to {LAST_PRIORITY} (last), or 0 for {DEFAULT_PRIORITY}"
        raise Refused(f"the parameter 'priority' is no integer {words}", "priority")
    return value


def _boolean(parameters: Mapping[str, Parameter], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise Refused(f"the parameter {name!r} is neither true nor false", f"parameters.{name}")
    return value


Header = Callable[[str], str | None]  # looks a header up by its name

# Headers that go on to a peer which runs the call. Those of an inference gateway are there only if it may send them.
_ONWARD = ("traceparent", "tracestate", FAIRNESS_ID.lower(), OBJECTIVE.lower())
SESSION = "X-Session-Id"
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
    ] = msgspec.field(name=SESSION, default="")


def call_terms(
    header: Header,
    front: FrontParameters,
    now: float,
    *,
    caller: str = "",
    request_id: str = "",
    session: object = "",
    trace: TracePart | None = None,
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
        session=(header(SESSION) or str(session))[:_MAX_SESSION],
        trace=trace,
        headers=tuple([(name, value) for name in _ONWARD if (value := header(name)) is not None]),
    )


def _idempotency_key(header: Header) -> str:
    field = header(KEY_HEADER)
    return "" if field is None else parse_key(field)


PREFER = "X-Prefer"  # weights of preferences, as a JSON object: {"tier=small": 2}
FUZZY = "X-Fuzzy"  # true or false

_WEIGHTS = msgspec.json.Decoder(dict[str, float])
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def parse_capability(headers: Iterable[tuple[str, str]]) -> CapabilityTarget:
    """Reads X-Capability-KEY, X-Prefer and X-Fuzzy; without any of the first, the query is empty.

    Raises Refused, which names the header.
    """
    headers = list(headers)
    others = {name.lower(): value for name, value in headers}
    return CapabilityTarget(
        header_query(headers), _weights(others.get(PREFER.lower())), _truth(others.get(FUZZY.lower()))
    )


def _weights(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    try:
        return _WEIGHTS.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise Refused(f'the header {PREFER} is no JSON object of weights, as {{"tier=small": 2}}', PREFER) from None


def _truth(text: str | None) -> bool:
    value = _TRUTHS.get((text or "false").strip().lower())
    if value is None:
        raise Refused(f"the header {FUZZY} is neither true nor false", FUZZY)
    return value
