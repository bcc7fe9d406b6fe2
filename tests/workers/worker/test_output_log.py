from __future__ import annotations

import tracemalloc

import pytest

from corosrv.workers.worker.parent.app_watch import MAX_LINE, LineBudget, OutputLog


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "corosrv.handler")


def test_each_line_says_who_printed_it(caplog: pytest.LogCaptureFixture) -> None:
    OutputLog(LineBudget(0.0)).write("default/0[17] r1", "stderr", "one\n\ntwo\n", 0.0)

    assert caplog.messages == [
        "default/0[17] r1 stderr: one",
        "default/0[17] r1 stderr: ",
        "default/0[17] r1 stderr: two",
    ]


def test_a_flood_is_cut_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    output = OutputLog(LineBudget(0.0, rate=2.0, burst=3.0))

    output.write("w", "stdout", "x\n" * 1000, 0.0)
    output.write("w", "stdout", "y\n", 0.9)
    output.write("w", "stdout", "z\n", 1.0)

    assert caplog.messages == ["w stdout: x"] * 3 + ["w printed too fast: 998 lines were left out", "w stdout: z"]


def test_a_quiet_worker_may_print_a_burst_again() -> None:
    budget = LineBudget(0.0, rate=2.0, burst=10.0)
    assert budget.take(20, 0.0) == 10

    assert budget.take(20, 100.0) == 10


def test_a_steady_flood_is_told_of_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    output = OutputLog(LineBudget(0.0, rate=10.0, burst=20.0))

    for tenth in range(100):
        output.write("w", "stdout", "x\n" * 50, tenth / 10)

    notices = [message for message in caplog.messages if "too fast" in message]
    assert len(notices) == 9
    assert len(caplog.messages) - len(notices) == 20 + 9 * 10


def test_a_line_without_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    OutputLog(LineBudget(0.0)).write("w", "stdout", "x" * (MAX_LINE + 1), 0.0)

    assert caplog.messages == ["w stdout: " + "x" * MAX_LINE]


def test_a_flood_of_empty_lines_makes_no_list_of_them() -> None:
    output = OutputLog(LineBudget(0.0, rate=1.0, burst=2.0))
    text = "\n" * (1 << 20)
    tracemalloc.start()
    try:
        output.write("w", "stdout", text, 0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 3 * len(text)
