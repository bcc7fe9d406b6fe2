"""Turns the calls that handlers make into messages, and messages into answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corosrv.workers.wire.calls import Ask, AskOutputs, WireRequest
from corosrv.workers.wire.tensors import TensorPacking
from corosrv.workers.worker.app.asking import OutgoingCall
from corosrv.workers.worker.app.call_errors import error_of
from corosrv.workers.worker.app.messages import ModelInferResponse
from corosrv.workers.worker.app.signal import EndSignal
from corosrv.workers.worker.child.apps.lane_asks import AskAnswer, MakeMessage, OpenAsk


def open_call(
    open_ask: Callable[[MakeMessage, Sequence[int]], OpenAsk], call: OutgoingCall, signal: EndSignal, request_id: str
) -> OpenAsk:
    """Sends a call on behalf of a request. Raises what `signal` says, and what `open_ask` raises."""
    signal.check()
    with TensorPacking() as packing:
        inputs = packing.pack(call.inputs)
        outputs = None if call.outputs is None else list(call.outputs)
        request = WireRequest(inputs, request_id, dict(call.parameters or {}), outputs)

        def make_message(number: int) -> Ask:
            return Ask(
                number,
                request,
                call.model,
                call.version,
                None if call.capability is None else dict(call.capability),
                dict(call.prefer or {}),
                call.is_fuzzy,
                call.stream,
                _budget_us(call, signal),
                call.priority or 0,
                request_id,
            )

        return open_ask(make_message, packing.fds())


def _budget_us(call: OutgoingCall, signal: EndSignal) -> int | None:
    """Returns the microseconds that a call may take: its own limit, and what its request has left."""
    seconds = signal.remaining()
    if call.timeout_ms is not None:
        own_seconds = max(0.0, call.timeout_ms / 1000)
        seconds = own_seconds if seconds is None else min(seconds, own_seconds)
    return None if seconds is None else int(seconds * 1e6)


def response_of(answer: AskAnswer, signal: EndSignal) -> ModelInferResponse | None:
    """Returns an answer to a call; None if it has ended well. Raises why it has not, or why nobody wants it."""
    message, tensors, _ = answer
    if isinstance(message, AskOutputs):
        return ModelInferResponse(
            tensors, message.parameters, message.is_final, model_name=message.model, model_version=message.version
        )
    if not message.status:
        return None
    if signal.is_set:
        signal.check()
    raise error_of(message.status, message.error_kind, message.message, message.code, retry_after_of(message))


def retry_after_of(message: object) -> int | None:
    value = getattr(message, "retry_after", None)  # an ObjectAnswer has none
    return value if isinstance(value, int) else None
