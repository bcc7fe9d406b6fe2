"""Calls of handlers that give one answer: the real child, over real channels."""

from __future__ import annotations

import pytest

from corosrv.formats.tensors import Tensor
from corosrv.workers.wire.calls import CallEnd
from corosrv.workers.wire.descriptors import MIN_ATTACHED
from corosrv.workers.wire.messages import SlotFailed
from tests.support.app_child import AppChildProcess, number


def test_a_function_answers(child: AppChildProcess) -> None:
    answer = child.call("add", number("a", 1, 2), number("b", 3, 4))

    assert answer.only == {"n": [4, 6]}


def test_a_handler_is_told_what_the_call_says(child: AppChildProcess) -> None:
    answer = child.call("echo", number("x", 1), attempt=2, parameters={"unit": "m", "is_good": True, "n": 1, "x": 1.0})

    assert answer.only == {"x": [1]}
    parameters = {"unit": "m", "is_good": True, "n": 1, "x": 1.0, "seen": "echo 2 r0 request-0 default/0 2 True"}
    assert answer.parameters == [parameters]
    assert [type(value) for value in answer.parameters[0].values()] == [str, bool, int, float, str]
    assert isinstance(answer.end, CallEnd)


def test_one_function_by_several_names_shares_its_slots(child: AppChildProcess) -> None:
    cards = [card for card in child.handlers if card.name in ("double", "twice")]

    assert [card.capability for card in cards] == [None, None, {"type": "double", "size": 8}]
    assert len({card.group for card in cards}) == 1
    assert child.call("double", number("n", 4), slot=child.slot("twice")).only == {"n": [8]}


def test_a_large_tensor_travels_both_ways_beside_its_message(child: AppChildProcess) -> None:
    large = Tensor("x", "UINT8", [MIN_ATTACHED + 1], raw=b"\x07" * (MIN_ATTACHED + 1))

    answer = child.call("echo", number("small", 1), large)

    assert isinstance(answer.end, CallEnd)
    assert [tensor.n_bytes for tensor in answer.outputs[0].values()] == [4, MIN_ATTACHED + 1]
    assert bytes(answer.outputs[0]["x"].raw) == bytes(large.raw)


def test_functions_run_on_a_thread_for_each_slot(child: AppChildProcess) -> None:
    slot = child.slot("pair")
    child.send("pair", [], slot=slot)
    child.send("pair", [], slot=slot + 1)

    threads = [child.hear(slot)[0].only["n"][0], child.hear(slot + 1)[0].only["n"][0]]

    assert threads[0] != threads[1]
    assert child.process.pid not in threads  # the main thread's number


def test_coroutines_of_many_slots_run_at_once(child: AppChildProcess) -> None:
    slot = child.slot("coroutine")
    for at in range(8):
        child.send("coroutine", [number("n", 8)], slot=slot + at)

    assert [child.hear(slot + at)[0].only for at in range(8)] == [{"n": [8]}] * 8


def test_calls_of_one_lane_run_one_after_the_other(child: AppChildProcess) -> None:
    slot = child.slot("single")
    for _ in range(5):
        child.send("single", [], slot=slot)

    assert [child.hear(slot)[0].only for _ in range(5)] == [{"n": [1]}] * 5


@pytest.mark.parametrize("name", ["batch", "batch_async"])
def test_a_batch_answers_each_request_in_its_place(child: AppChildProcess, name: str) -> None:
    slot = child.slot(name)
    child.send(name, *([number("n", n)] for n in (5, 3, 4)))

    assert [answer.only for answer in child.hear(slot, 3)] == [{"n": [5]}, {"n": [3]}, {"n": [4]}]


def test_a_batch_of_one_is_a_list_of_one(child: AppChildProcess) -> None:
    answer = child.call("batch", number("n", 5))

    assert answer.only == {"n": [5]}
    assert answer.logs == "batch request-0\n"


def test_an_error_in_a_batch_fails_its_own_item_only(child: AppChildProcess) -> None:
    child.send("batch", *([number("n", n)] for n in (5, -3, 96, 4)))

    answers = child.hear(child.slot("batch"), 4)

    assert [answers[0].only, answers[3].only] == [{"n": [5]}, {"n": [4]}]
    assert (answers[1].failure.kind, answers[1].failure.message) == ("invalid_input", "-3 is negative")
    assert answers[2].failure.kind == "failed"
    assert "the output 'x', which it does not declare" in answers[2].failure.message


@pytest.mark.parametrize(("n", "reason"), [(99, "1 answers for a batch of 2"), (98, "ValueError: all of them")])
def test_a_batch_that_fails_fails_every_item(child: AppChildProcess, n: int, reason: str) -> None:
    child.send("batch", [number("n", n)], [number("n", 1)])

    answers = child.hear(child.slot("batch"), 2)

    assert [answer.failure.kind for answer in answers] == ["failed"] * 2
    assert all(reason in answer.failure.message for answer in answers)


def test_a_cancelled_item_does_not_end_its_batch(child: AppChildProcess) -> None:
    slot = child.slot("batch")
    id = child.send("batch", [number("n", 97)], [number("n", 1)])
    child.await_log("batch", slot)

    child.cancel(id, slot, item=0)

    answers = child.hear(slot, 2)
    assert answers[0].failure.kind == "cancelled"
    assert answers[1].only == {"n": [1]}


def test_a_batch_above_its_size_costs_the_slot(own_child: AppChildProcess) -> None:
    own_child.send("batch", *([number("n", n)] for n in range(5)))

    message = own_child.hear_control()

    assert message == SlotFailed(own_child.slot("batch"), "a call of batch with 5 requests")


def test_a_second_call_on_a_lane_of_coroutines_costs_the_slot(own_child: AppChildProcess) -> None:
    slot = own_child.slot("wait_async")
    own_child.send("wait_async", [number("n", 1)], slot=slot)
    own_child.send("wait_async", [number("n", 1)], slot=slot)

    assert own_child.hear_control() == SlotFailed(slot, "a call came before the one before it had ended")
