"""Handlers that fail, and what they do to their process: the real child, over real channels."""

from __future__ import annotations

import os
import signal

import pytest

from corosrv.workers.wire.calls import CallEnd
from corosrv.workers.wire.messages import DroppedLogs
from tests.support.app_child import TIMEOUT, AppChildProcess, number

TOLD = [
    (1, "invalid_input", "n is wrong"),
    (2, "not_found", "no such n"),
    (3, "unavailable", "come back"),
    (4, "cancelled", "never mind"),
    (5, "deadline", "too late"),
]


def assert_it_goes_on(child: AppChildProcess) -> None:
    assert child.call("add", number("a", 1), number("b", 1)).only == {"n": [2]}
    assert child.call("coroutine", number("n", 1)).only == {"n": [1]}


@pytest.mark.parametrize("name", ["fail", "fail_async"])
@pytest.mark.parametrize(("n", "kind", "message"), TOLD)
def test_a_declared_error_reaches_the_client(
    child: AppChildProcess, name: str, n: int, kind: str, message: str
) -> None:
    failure = child.call(name, number("n", n)).failure

    assert (failure.kind, failure.message) == (kind, message)


@pytest.mark.parametrize("name", ["fail", "fail_async"])
@pytest.mark.parametrize("n", [6, 7, 8, 9, 10, 11])
def test_anything_else_fails_its_call_only(child: AppChildProcess, name: str, n: int) -> None:
    failure = child.call(name, number("n", n)).failure

    assert failure.kind == "failed"
    assert "Traceback" in failure.message
    assert f"in {name}\n" in failure.message
    assert_it_goes_on(child)


@pytest.mark.parametrize(
    ("n", "problem"),
    [
        (1, "returned a NoneType: return a ModelInferResponse, or a dict"),
        (2, "returned a int"),
        (3, "returned a str"),
        (4, "the output 'm', which it does not declare"),
        (5, "'one'"),
        (6, "2147483648"),
        (7, "output 'n' is a int: return a list"),
        (8, "the output 1, which it does not declare"),
        (9, "is INT64, and declared as INT32"),
        (10, "the shape [1, 1], and declared as [-1]"),
        (11, "is a str and no Tensor"),
        (12, "two outputs of the name 'n'"),
        (13, "the parameter 'p': [1], which is no scalar"),
        (14, "cannot be sent"),
        (15, "cannot be sent"),
        (16, "cannot be sent"),
        (17, "returned a list"),
    ],
)
def test_nonsense_is_the_handlers_failure(child: AppChildProcess, n: int, problem: str) -> None:
    failure = child.call("nonsense", number("n", n)).failure

    assert failure.kind == "failed"
    assert problem in failure.message
    assert "Traceback" not in failure.message


def test_what_a_call_prints_is_said_on_its_lane(child: AppChildProcess) -> None:
    logs = child.call("print", number("n", 1)).logs

    assert "INFO [request-0] logged\n" in logs
    assert "from a thread\n" in logs
    assert "from a child\n" in logs
    assert "x" * 999 in logs
    assert child.call("print_async").logs == "from a coroutine\n"


def test_what_is_printed_after_a_call_is_the_workers(child: AppChildProcess) -> None:
    assert child.call("print_later").logs == ""
    assert child.call("let_go").logs == ""

    child.await_worker_log("too late")


def test_a_handler_that_prints_without_end_takes_no_memory(own_child: AppChildProcess) -> None:
    slot = own_child.slot("print")
    before = own_child.next_beat().rss
    own_child.send("print", [number("n", 100_000)])  # a hundred megabytes, which nobody reads

    while not isinstance(own_child.control.receive(), DroppedLogs):
        beat = own_child.next_beat()
        if not beat.in_flight:
            break

    assert own_child.next_beat().rss - before < 20_000_000
    answer = own_child.hear(slot)[0]
    assert isinstance(answer.end, CallEnd)
    assert len(answer.logs) < 20_000_000


@pytest.mark.parametrize(("name", "n", "code"), [("fork", 0, 0), ("fork", 1, 1), ("fork", 2, 7), ("fork_async", 0, 0)])
def test_a_copy_that_comes_back_ends_as_a_script(child: AppChildProcess, name: str, n: int, code: int) -> None:
    assert child.call(name, number("n", n)).only == {"n": [code]}
    assert_it_goes_on(child)


def test_a_copy_ends_where_it_would_yield(child: AppChildProcess) -> None:
    assert child.call("fork_yields").data == [{"n": [0]}]


def test_a_copy_can_be_ended_as_any_process(child: AppChildProcess) -> None:
    assert child.call("terminate_copy").only == {"n": [-signal.SIGTERM]}


def test_signals_to_the_group_do_not_stop_the_worker(child: AppChildProcess) -> None:
    for number_of_signal in (signal.SIGINT, signal.SIGTERM):
        os.killpg(child.process.pid, number_of_signal)

    child.next_beat()
    assert_it_goes_on(child)


def test_a_task_that_exits_ends_nothing(child: AppChildProcess) -> None:
    assert child.call("exit_task").only == {"n": [1]}
    assert_it_goes_on(child)


def test_a_handler_that_cancels_all_tasks_hits_its_own(child: AppChildProcess) -> None:
    assert child.call("cancel_all").failure.kind == "failed"
    assert_it_goes_on(child)


def test_a_handler_that_exits_ends_its_worker(own_child: AppChildProcess) -> None:
    own_child.send("exit", [number("n", 3)])

    assert own_child.process.wait(TIMEOUT) == 3
    assert own_child.hear_control() is None


@pytest.mark.parametrize("name", ["close_descriptors", "close_descriptors_async"])
def test_a_handler_that_closes_all_descriptors_ends_its_worker(own_child: AppChildProcess, name: str) -> None:
    own_child.send(name, [number("n", 0)])

    assert own_child.process.wait(TIMEOUT) != 0


@pytest.mark.parametrize("name", ["wait", "count"])
def test_a_worker_ends_with_its_server_whatever_runs(own_child: AppChildProcess, name: str) -> None:
    own_child.send(name, [number("n", 1000)])

    own_child.control.close()

    assert own_child.process.wait(TIMEOUT) != 0
