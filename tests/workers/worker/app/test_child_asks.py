"""Calls that handlers make themselves: the real child, and a server that is driven by hand."""

from __future__ import annotations

from typing import Any

import pytest

from corosrv.formats.tensors import Tensor
from corosrv.workers.wire.calls import ASK_WINDOW, Ask, AskCancel, AskEnd, AskOutputs, AskTaken, CallEnd
from corosrv.workers.wire.descriptors import MIN_ATTACHED
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.tensors import TensorPacking, unpack
from tests.support.app_child import AppChildProcess, number

BOTH = ["ask", "ask_async"]
UNCAUGHT = ["ask_uncaught", "ask_uncaught_async"]
STREAMS = ["ask_stream", "ask_stream_async"]


def hear_ask(child: AppChildProcess, slot: int) -> tuple[Ask, dict[str, Tensor]]:
    message = child.hear_message(slot)
    assert isinstance(message, Ask), message
    ((*tensors,),) = unpack([message.request.inputs], child.lanes[slot].take_fds())
    return message, {tensor.name: tensor for tensor in tensors}


def answer(child: AppChildProcess, slot: int, ask: Ask, *tensors: Tensor, **options: Any) -> None:
    with TensorPacking() as packing:
        message = AskOutputs(ask.number, packing.pack(tensors), model="other", version="7", **options)
        child.lanes[slot].send(message, packing.fds())


def end(child: AppChildProcess, slot: int, ask: Ask, fault: Fault | None = None) -> None:
    child.lanes[slot].send(AskEnd(ask.number, "other", "7", fault))


def n(value: int) -> Tensor:
    return Tensor("n", "INT64", [1], data=[value])


@pytest.mark.parametrize("name", BOTH)
def test_a_call_is_asked_for_and_its_answer_given_back(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    parameters = {"model": "other", "version": "7", "timeout_ms": 500, "priority": 2, "fuzzy": True}
    child.send(name, [number("x", 1)], parameters=parameters)

    ask, inputs = hear_ask(child, slot)
    answer(child, slot, ask, n(2), parameters={"unit": "m"}, is_final=True)
    end(child, slot, ask)

    assert (ask.model, ask.version, ask.capability, ask.priority, ask.is_fuzzy) == ("other", "7", None, 2, True)
    assert (ask.budget_us, ask.request_id, ask.stream) == (500_000, "request-0", False)
    assert inputs["x"].data == [1]
    result = child.hear(slot)[0]
    assert result.only == {"n": [2]}
    assert result.parameters == [{"seen": "other 7 {'unit': 'm'} True"}]


@pytest.mark.parametrize("name", BOTH)
def test_a_capability_is_asked_for_by_its_attributes(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    child.send(name, [], parameters={"type": "embed"}, seconds=10)

    ask, _ = hear_ask(child, slot)
    end(child, slot, ask)

    assert (ask.model, ask.capability) == ("", {"type": "embed"})
    assert ask.priority == 0  # that of the call which makes it
    assert ask.budget_us is not None
    assert 5e6 < ask.budget_us < 10e6
    error = child.hear(slot)[0].parameters[0]["error"]
    assert error == "HandlerFailed: the call ended without an answer (500)"


@pytest.mark.parametrize("name", BOTH)
def test_large_tensors_travel_beside_asks_and_their_answers(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    large = Tensor("x", "UINT8", [MIN_ATTACHED], raw=b"\x05" * MIN_ATTACHED)
    child.send(name, [large])

    ask, inputs = hear_ask(child, slot)
    answer(child, slot, ask, inputs["x"])
    end(child, slot, ask)

    assert bytes(child.hear(slot)[0].outputs[0]["x"].raw) == bytes(large.raw)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid request", "CallRefused: m (400)"),
        (501, "not offered", "NotOffered: m (501)"),
        (404, "not found", "NotFound: m (404)"),
        (503, "unavailable", "Unavailable: m (503)"),
        (429, "rate limited", "Unavailable: m (429)"),
        (504, "deadline passed", "DeadlinePassed: m (504)"),
        (499, "client gone", "CallCancelled: m (499)"),
        (409, "conflict", "Conflict: m (409)"),
        (502, "worker lost", "WorkerLost: m (502)"),
        (500, "failed", "HandlerFailed: m (500)"),
        (500, "of a later version", "HandlerFailed: m (500)"),
    ],
)
def test_an_error_is_raised_by_its_kind(child: AppChildProcess, name: str, status: int, kind: str, error: str) -> None:
    slot = child.slot(name)
    child.send(name, [])

    ask, _ = hear_ask(child, slot)
    end(child, slot, ask, Fault("m", status, kind))

    assert child.hear(slot)[0].parameters == [{"error": error}]


@pytest.mark.parametrize("name", UNCAUGHT)
@pytest.mark.parametrize(("kind", "failure"), [("not found", "not_found"), ("worker lost", "failed")])
def test_an_error_that_nobody_catches_is_the_handlers(
    child: AppChildProcess, name: str, kind: str, failure: str
) -> None:
    slot = child.slot(name)
    child.send(name, [])

    ask, _ = hear_ask(child, slot)
    end(child, slot, ask, Fault("m", 404, kind))

    assert child.hear(slot)[0].failure.kind == failure


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"model": "a", "type": "b"}, "TypeError: context.call needs either a `model` or a `capability`, and not both"),
        ({"version": "a"}, "TypeError: context.call needs either a `model` or a `capability`, and not both"),
        ({"model": "a", "modle": "b"}, "TypeError: make_call() got an unexpected keyword argument 'modle'"),
        ({"model": "a", "priority": 0}, "ValueError: `priority` must be from 1 (first) to 9, not 0"),
        ({"model": "a", "priority": "1"}, "ValueError: `priority` must be from 1 (first) to 9, not '1'"),
    ],
)
def test_a_wrong_call_asks_for_nothing(child: AppChildProcess, name: str, parameters: Any, error: str) -> None:
    result = child.call(name, parameters=parameters)

    assert result.parameters[0]["error"].startswith(error)


@pytest.mark.parametrize("name", ["ask_all", "ask_all_async"])
def test_calls_may_be_made_at_once_and_answered_in_any_order(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    child.send(name, [number("n", 20)])

    asks = [hear_ask(child, slot) for _ in range(20)]
    for ask, inputs in reversed(asks):
        answer(child, slot, ask, inputs["n"])
        end(child, slot, ask)

    assert child.hear(slot)[0].only == {"n": [sum(range(20))]}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_passed_on_and_the_server_told_of_room(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    child.send(name, [number("n", 0)], stream=True)
    ask, _ = hear_ask(child, slot)
    assert ask.stream

    n_taken = 0
    for at in range(ASK_WINDOW):
        answer(child, slot, ask, n(at))
        while isinstance(message := child.hear_message(slot), AskTaken):
            n_taken += message.count
        assert not isinstance(message, AskEnd)
    end(child, slot, ask)

    assert n_taken >= ASK_WINDOW // 2
    result = child.hear_rest(slot)
    assert isinstance(result.end, CallEnd)
    assert result.logs == "closed\n"


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_is_closed_is_cancelled(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    child.send(name, [number("n", 1)], stream=True)
    ask, _ = hear_ask(child, slot)

    answer(child, slot, ask, n(1))
    child.hear_message(slot)

    assert child.hear_message(slot) == AskCancel(ask.number)
    end(child, slot, ask, Fault("late", 499, "client gone"))
    assert isinstance(child.hear_rest(slot).end, CallEnd)


@pytest.mark.parametrize("name", UNCAUGHT + STREAMS)
@pytest.mark.parametrize(("is_deadline", "kind"), [(False, "cancelled"), (True, "deadline")])
def test_a_cancel_ends_what_the_handler_asked_for(
    child: AppChildProcess, name: str, is_deadline: bool, kind: str
) -> None:
    slot = child.slot(name)
    id = child.send(name, [number("n", 0)])
    ask, _ = hear_ask(child, slot)

    child.cancel(id, slot, is_deadline=is_deadline)

    assert child.hear_message(slot) == AskCancel(ask.number)
    end(child, slot, ask, Fault("cancelled", 499, "client gone"))
    assert child.hear_rest(slot).failure.kind == kind


def test_a_thread_that_is_left_behind_asks_for_nothing_more(child: AppChildProcess) -> None:
    slot = child.slot("ask_later")
    child.send("ask_later", [])
    ask, _ = hear_ask(child, slot)
    child.call("let_go")
    assert isinstance(child.hear_rest(slot).end, CallEnd)

    answer(child, slot, ask, n(1))  # on its way when the call ended
    end(child, slot, ask)
    child.await_worker_log("so it can ask for nothing more")

    assert "the call is over, and what it asked for with it" in child.log
    child.send("ask_later", [])  # reaches the slot's thread, whoever reads the lane
    hear_ask(child, slot)
    child.call("let_go")
    assert isinstance(child.hear_rest(slot).end, CallEnd)


@pytest.mark.parametrize("name", UNCAUGHT)
def test_answers_to_nobody_are_dropped(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    large = Tensor("x", "UINT8", [MIN_ATTACHED], raw=bytes(MIN_ATTACHED))
    child.send(name, [])
    ask, _ = hear_ask(child, slot)
    stray = Ask(ask.number + 7, ask.request)

    answer(child, slot, stray, large)
    end(child, slot, stray)
    answer(child, slot, ask, n(1))
    end(child, slot, ask)

    assert child.hear(slot)[0].only == {"n": [1]}
