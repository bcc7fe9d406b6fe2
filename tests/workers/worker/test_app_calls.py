"""Calls of handlers on an app worker: what is handed over, what comes back, and how they end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import gevent
import pytest
from msgspec.structs import replace

from corosrv.base.errors import (
    CallCancelled,
    CallRefused,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    NotFound,
    Unavailable,
)
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.formats.tensors import Tensor
from corosrv.workers.dispatch.host import HandedCall
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.call_services import LONG_COPY, CallServices
from tests.support.descriptors import n_descriptors
from tests.support.function_worker import FunctionCall, FunctionWorker
from tests.support.waiting import wait_until
from tests.workers.worker.app_handling import Recorder, call, counters, hand, item, ready

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]


@pytest.fixture(scope="module")
def worker() -> Iterator[AppProcess]:
    with ready() as worker:
        yield worker


def vector(*numbers: int) -> Tensor:
    return Tensor("x", "INT32", [len(numbers)], data=numbers)


def filled(n_bytes: int, fill: bytes = b"\x07") -> Tensor:
    return Tensor("x", "UINT8", [n_bytes], raw=fill * n_bytes)


def test_a_call_gives_its_outputs_and_ends(worker: AppProcess) -> None:
    echo = call(worker, inputs=[vector(1, 2, 3)])

    assert echo.wait_until_over() == [None]

    ((outputs,),) = echo.outputs
    assert [tensor.data for tensor in outputs.outputs] == [[1, 2, 3]]
    assert counters(worker) == (3, 0, 0, 0)


def test_a_handler_is_told_all_that_its_call_says(worker: AppProcess) -> None:
    told = hand(worker, item("tell", timeout=60, request_id="r1"), handler=1, attempt=2, stream=True)

    told.wait_until_over()

    (answer,) = told.parameters
    assert (answer["handler"], answer["attempt"], answer["stream"], answer["requests"]) == (1, 2, True, "r1")
    assert answer["slot"] == 2  # the first of the second group
    (budget,) = map(int, answer["budgets"].strip("[]").split(","))
    assert 50e6 < budget <= 60e6


def test_a_call_without_a_deadline_has_no_budget(worker: AppProcess) -> None:
    told = call(worker, "tell")
    told.wait_until_over()

    assert told.parameters[0]["budgets"] == "[None]"


def test_an_overdue_call_has_no_budget_left(worker: AppProcess) -> None:
    told = call(worker, "tell", timeout=-5.0)
    told.wait_until_over()

    assert told.parameters[0]["budgets"] == "[0]"


@pytest.mark.parametrize("n_bytes", [0, 1, (1 << 20) - 1, 1 << 20, LONG_COPY + 1])
def test_tensors_of_any_size_go_there_and_back(worker: AppProcess, n_bytes: int) -> None:
    sent = filled(n_bytes)

    echo = call(worker, inputs=[sent])

    assert echo.wait_until_over() == [None]
    ((outputs,),) = echo.outputs
    assert bytes(outputs.outputs[0].raw) == sent.raw
    assert echo.n_bytes >= n_bytes


def test_inputs_that_are_small_alone_and_large_together_go_there_and_back(worker: AppProcess) -> None:
    inputs = [filled(900_000, bytes([number])) for number in range(20)]

    echo = call(worker, inputs=inputs)

    assert echo.wait_until_over() == [None]
    assert [bytes(tensor.raw) for tensor in echo.outputs[0][0].outputs] == [tensor.raw for tensor in inputs]


def test_large_tensors_leave_no_descriptor(worker: AppProcess) -> None:
    call(worker, inputs=[filled(LONG_COPY)]).wait_until_over()  # the thread pool's come with its first use
    before = n_descriptors()

    for _ in range(5):
        call(worker, inputs=[filled(2 << 20)]).wait_until_over()

    wait_until(lambda: n_descriptors() <= before)


def test_a_large_call_that_is_cancelled_while_it_is_copied_never_reaches_a_handler(worker: AppProcess) -> None:
    echo = call(worker, inputs=[filled(LONG_COPY)])

    echo.call.cancel()

    (error,) = echo.wait_until_over()
    assert isinstance(error, CallCancelled)
    assert echo.outputs == [[]]
    assert counters(worker) == (3, 0, 0, 0)


def test_parameters_that_no_frame_holds_refuse_their_call_alone(worker: AppProcess) -> None:
    refused = call(worker, "tell", text="x" * (9 << 20))
    assert not refused.is_over, "a call must not end before its caller knows it"

    (error,) = refused.wait_until_over()

    assert isinstance(error, CallRefused)
    assert call(worker).wait_until_over() == [None]


def test_a_stream_gives_all_its_outputs_in_order(worker: AppProcess) -> None:
    stream = call(worker, "stream", n=50)

    assert stream.wait_until_over() == [None]

    assert [parameters["number"] for parameters in stream.parameters] == list(range(50))
    assert [outputs.is_final for outputs in stream.outputs[0]] == [False] * 49 + [True]


def test_a_call_that_nobody_reads_stops_its_own_handler_and_nothing_else(worker: AppProcess) -> None:
    stream = Recorder()
    stream.has_room.clear()
    stream = hand_to(worker, stream, "stream", n=100, size=100_000)
    stream.wait_for_outputs()
    for _ in range(20):
        assert call(worker).wait_until_over() == [None]
    n_before = len(stream.outputs[0])

    stream.has_room.set()

    assert stream.wait_until_over() == [None]
    assert n_before == 1
    assert len(stream.outputs[0]) == 100


def hand_to(worker: AppProcess, recorder: Recorder, do: str, **arguments: object) -> Recorder:
    recorder.permit = worker.groups[0].permits.try_acquire()
    recorder.call = worker.start_call(recorder.permit, HandedCall(0, [item(do, **arguments)]), recorder)  # type: ignore[arg-type]
    return recorder


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("invalid_input", CallRefused, "too hot"),
        ("not_found", NotFound, "too hot"),
        ("unavailable", Unavailable, "too hot"),
        ("cancelled", CallCancelled, "too hot"),
        ("deadline", DeadlinePassed, "too hot"),
        ("failed", HandlerFailed, "the handler failed; the server's log says why"),
    ],
)
def test_each_failure_becomes_its_error(
    worker: AppProcess, kind: str, error: type[CorosrvError], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    (failure,) = hand(worker, item("fail", request_id="r7", kind=kind, message="too hot")).wait_until_over()

    assert type(failure) is error
    assert str(failure) == message
    assert ("request r7: the handler failed: too hot" in caplog.text) == (kind == "failed")


def test_a_failure_without_words_has_some_for_the_client(worker: AppProcess) -> None:
    for kind in ("invalid_input", "not_found", "unavailable", "cancelled", "deadline"):
        (failure,) = call(worker, "fail", kind=kind, message="").wait_until_over()

        assert str(failure)


def test_what_a_call_prints_is_logged_with_its_request(worker: AppProcess, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "corosrv.handler"):
        hand(worker, item("print_lines", request_id="r9")).wait_until_over()

    assert caplog.messages == [f"default/0[{worker.pid}] r9 stdout: {line}" for line in ("one", "two")]


def test_what_a_handler_left_behind_prints_does_its_slot_no_harm(
    worker: AppProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "corosrv.handler"):
        hand(worker, item("print_after_the_end"), handler=1).wait_until_over()
        assert hand(worker, item("echo"), handler=1).wait_until_over() == [None]

    assert f"default/0[{worker.pid}] stdout: late" in caplog.messages


# Batches.


def test_each_item_of_a_batch_has_its_own_answer(worker: AppProcess) -> None:
    batch = hand(worker, *(item("echo", [vector(number)]) for number in range(5)))

    assert batch.wait_until_over() == [None] * 5

    assert [outputs.outputs[0].data for (outputs,) in batch.outputs] == [[0], [1], [2], [3], [4]]


def test_one_cancelled_item_does_not_cancel_the_others(worker: AppProcess) -> None:
    batch = hand(worker, *(item("wait_for_cancel") for _ in range(3)))
    batch.wait_for_outputs()

    batch.call.cancel(1)

    assert isinstance(batch.wait_for_end(1), CallCancelled)
    assert set(batch.ends) == {1}
    assert batch.permit.is_held
    batch.call.cancel(0)
    batch.call.cancel(2)
    batch.wait_until_over()


def test_each_item_has_its_budget(worker: AppProcess) -> None:
    told = hand(worker, item("tell", timeout=30), item(timeout=None), item(timeout=10))
    told.wait_until_over()

    first, second, third = told.parameters[0]["budgets"].strip("[]").split(", ")
    assert int(first) > int(third) > 0
    assert second == "None"


# Cancels.


def test_a_cancel_reaches_the_handler_and_its_end_still_comes(worker: AppProcess) -> None:
    waiting, other = call(worker, "wait_for_cancel"), call(worker, "wait_for_cancel")
    waiting.wait_for_outputs()

    waiting.call.cancel()
    waiting.call.cancel()

    (error,) = waiting.wait_until_over()
    assert isinstance(error, CallCancelled)
    assert not other.ends
    waiting.call.cancel()  # after its end, which is harmless
    other.call.cancel(is_deadline=True)
    (error,) = other.wait_until_over()
    assert isinstance(error, DeadlinePassed)


def test_an_overdue_call_that_nobody_cancels_is_cancelled_by_its_worker(worker: AppProcess) -> None:
    waiting = call(worker, "wait_for_cancel", timeout=0.05)

    (error,) = waiting.wait_until_over()

    assert isinstance(error, DeadlinePassed)


# Counts.


def test_calls_are_counted(worker: AppProcess) -> None:
    before = worker.served, worker.failed
    waiting = call(worker, "wait_for_cancel")

    call(worker).wait_until_over()
    call(worker, "fail", kind="failed", message="").wait_until_over()
    assert worker.in_flight == 1
    waiting.call.cancel()
    waiting.wait_until_over()

    assert (worker.served - before[0], worker.failed - before[1], worker.in_flight) == (1, 2, 0)


def test_heartbeats_tell_of_the_process(worker: AppProcess) -> None:
    wait_until(lambda: worker.last_heartbeat)

    assert worker.rss == 4096
    assert worker.last_heartbeat is not None
    assert 0 <= time.monotonic() - worker.last_heartbeat < 60


def test_a_listener_hears_of_each_permit_that_ends(worker: AppProcess) -> None:
    heard: list[int] = []
    worker.on_change(lambda: heard.append(counters(worker)[1]))

    call(worker).wait_until_over()
    gevent.idle()

    assert heard == [0]


def test_the_next_call_may_be_handed_over_from_within_the_end_of_the_last(worker: AppProcess) -> None:
    following: list[Recorder] = []

    class Chain(Recorder):
        def on_end(self, item: int, error: CorosrvError | None) -> None:
            super().on_end(item, error)
            if len(following) < 5:
                following.append(hand_to(worker, Chain(), "echo"))

    hand_to(worker, Chain(), "echo").wait_until_over()

    wait_until(lambda: len(following) == 5)
    assert [recorder.wait_until_over() for recorder in following] == [[None]] * 5


def test_a_listener_that_fails_harms_no_slot(worker: AppProcess, caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Recorder):
        def on_end(self, item: int, error: CorosrvError | None) -> None:
            super().on_end(item, error)
            raise ValueError("a bug")

    hand_to(worker, Faulty(), "echo").wait_until_over()

    assert "the end of a call could not be passed on" in caplog.text
    assert call(worker).wait_until_over() == [None]
    assert counters(worker) == (3, 0, 0, 0)


# Asks.


def wait_for_cancel(call: FunctionCall) -> None:
    call.cancelled.wait()


def test_a_handler_may_call_others() -> None:
    models = FunctionWorker()
    models.add(lambda call: call.send(vector(5)), "five")
    with ready(services=CallServices(models.submit)) as worker:
        asking = call(worker, "ask", model="five", timeout=30, request_id="r3")

        assert asking.wait_until_over() == [None]

        assert asking.parameters[-1] == {"status": 0, "kind": "", "message": ""}
        (asked,) = models.calls
        assert asked.job.terms.request_id == "r3"
        assert asked.job.terms.deadline is not None
        assert 0 < asked.job.terms.deadline - time.monotonic() <= 30


def test_what_a_batch_asks_for_is_as_urgent_as_its_most_urgent_request() -> None:
    models = FunctionWorker()
    models.add(lambda call: call.send(vector(5)), "five")
    with ready(services=CallServices(models.submit)) as worker:
        items = [replace(item("ask", model="five"), priority=priority) for priority in (4, 2, 7)]
        asking = hand(worker, *items)

        assert asking.wait_until_over() == [None, None, None]

        assert models.calls[0].job.terms.priority == 2


@pytest.mark.parametrize(("callers", "asker"), [("aaa", "a"), ("aba", "")])
def test_what_a_batch_of_several_callers_asks_for_is_nobodys(callers: str, asker: str) -> None:
    models = FunctionWorker()
    models.add(lambda call: call.send(vector(5)), "five")
    with ready(services=CallServices(models.submit)) as worker:
        asking = hand(worker, *(replace(item("ask", model="five"), caller=caller) for caller in callers))

        assert asking.wait_until_over() == [None, None, None]

        assert models.calls[0].job.terms.caller == asker


@pytest.mark.parametrize(("owners", "owner", "tier", "weight"), [("aa", "a", 3, 2.0), ("ab", "several\x003", 3, 1.0)])
def test_what_a_handler_asks_for_takes_the_share_of_its_call(owners: str, owner: str, tier: int, weight: float) -> None:
    models = FunctionWorker()
    models.add(lambda call: call.send(vector(5)), "five")
    with ready(services=CallServices(models.submit)) as worker:
        flow = {"caller": "key", "tier": 3, "weight": 2.0}
        asking = hand(worker, *(replace(item("ask", model="five"), owner=owner, **flow) for owner in owners))

        assert asking.wait_until_over() == [None, None]

        terms = models.calls[0].job.terms
        assert (terms.caller, terms.owner, terms.tier, terms.weight) == ("key", owner, tier, weight)


def test_what_a_call_asked_for_is_cancelled_when_it_ends() -> None:
    models = FunctionWorker()
    models.add(wait_for_cancel, "slow")
    with ready(services=CallServices(models.submit)) as worker:
        assert call(worker, "ask_and_end", model="slow").wait_until_over() == [None]

        wait_until(lambda: all(asked.cancelled.is_set() for asked in models.calls))
        assert call(worker).wait_until_over() == [None]


def test_asks_without_services_are_not_offered(worker: AppProcess) -> None:
    asking = call(worker, "ask", model="five")
    asking.wait_until_over()

    assert asking.parameters[-1]["status"] == 501


def test_two_asks_of_one_number_poison_the_slot() -> None:
    models = FunctionWorker()
    models.add(wait_for_cancel, "slow")
    with ready(services=CallServices(models.submit)) as worker:
        (error,) = call(worker, "ask_twice").wait_until_over()

        assert error is not None
        assert "is running already" in worker.reason
        assert worker.state is not WorkerState.READY
