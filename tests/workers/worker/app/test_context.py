"""What a handler can ask of its context."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from corosrv.worker import AsyncContext, Cancelled, Context, DeadlineExceeded
from corosrv.workers.worker.app.messages import EndSignal


def test_a_wanted_request_goes_on() -> None:
    context = Context(EndSignal())

    context.check()
    context.sleep(0)

    assert (context.cancelled, context.deadline, context.remaining()) == (False, None, None)


def test_a_cancel_ends_a_sleep() -> None:
    signal = EndSignal()
    threading.Timer(0.01, signal.set).start()

    with pytest.raises(Cancelled):
        Context(signal).sleep(60)
    with pytest.raises(Cancelled):
        Context(signal).check()


def test_a_deadline_ends_a_sleep() -> None:
    context = Context(EndSignal(time.monotonic() + 0.01))

    with pytest.raises(DeadlineExceeded):
        context.sleep(60)
    assert context.remaining() == 0.0
    assert context.cancelled


def test_the_first_word_counts() -> None:
    signal = EndSignal()

    signal.set(is_deadline=True)
    signal.set()

    assert isinstance(signal.error(), DeadlineExceeded)


def test_listeners_hear_of_the_end_once() -> None:
    signal, calls = EndSignal(), list[str]()
    signal.on_set(lambda: calls.append("early"))

    signal.set()
    signal.set()
    signal.on_set(lambda: calls.append("late"))

    assert calls == ["early", "late"]


def test_a_coroutine_awaits_its_sleep() -> None:
    context = AsyncContext(EndSignal(time.monotonic() + 0.01))

    with pytest.raises(DeadlineExceeded):
        asyncio.run(context.sleep(60))


def test_the_log_goes_where_standard_error_does(capsys: pytest.CaptureFixture[str]) -> None:
    Context(EndSignal(), request_id="r1").log.warning("seen %d", 3)

    assert capsys.readouterr().err == "WARNING [r1] seen 3\n"
