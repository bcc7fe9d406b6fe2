"""Cancels reach user code of their own prediction, always and only: the real child, over real channels."""

from __future__ import annotations

import fcntl
import random
import sys
import termios
from pathlib import Path

import pytest

from corosrv.contracts.jobs.setup import Cancelled, Done, Failed
from tests.support.worker_child import ChildProcess, names

PREDICTORS = Path(__file__).parent.parent.parent / "predictors"


@pytest.fixture(params=["sync", "async"])
def child(request: pytest.FixtureRequest) -> ChildProcess:
    found: ChildProcess = request.getfixturevalue(f"{request.param}_child")
    return found


def test_a_cancel_ends_a_loop(sync_child: ChildProcess) -> None:
    sync_child.start(do="spin")
    sync_child.await_log("spinning")

    sync_child.cancel()

    assert isinstance(sync_child.hear().end, Cancelled)


def test_a_cancel_ends_a_coroutine(async_child: ChildProcess) -> None:
    async_child.start(do="forever")
    async_child.await_log("waiting")

    async_child.cancel()

    assert isinstance(async_child.hear().end, Cancelled)


def test_user_code_may_clean_up_and_what_it_did_is_kept(sync_child: ChildProcess) -> None:
    sync_child.start(do="clean_up")
    heard = sync_child.await_log("spinning")

    sync_child.cancel()

    rest = sync_child.hear()
    assert names(heard) == ["Metric", "LogLine"]
    assert names(rest) == ["LogLine", "Metric", "Cancelled"]


def test_a_swallowed_cancel_counts(child: ChildProcess) -> None:
    child.start(do="swallow", text="result")
    child.await_log("ing")

    child.cancel()

    heard = child.hear()
    assert "swallowed" in heard.logs
    assert isinstance(heard.end, Cancelled)


@pytest.mark.parametrize("do", ["sleep", "subprocess", "event", "queue", "pipe"])
def test_a_cancel_ends_waits_of_python(sync_child: ChildProcess, do: str) -> None:
    sync_child.start(do="wait_by", text=do)
    sync_child.await_log("waiting")

    sync_child.cancel()

    heard = sync_child.hear()
    assert isinstance(heard.end, Cancelled)
    assert "cleaned up" in heard.logs


@pytest.mark.parametrize("how", ["signal", "_signal", "libc", "blocked"])
def test_a_cancel_survives_reset_signal_handlers(tmp_path: Path, how: str) -> None:
    with ChildProcess(f"{PREDICTORS / 'sync_basics.py'}:Predictor") as child:
        child.set_up()
        assert isinstance(child.predict(do="reset_signals", text=how).end, Done)
        child.start(do="reset_signals_and_spin", text=how if how != "_signal" else "signal")
        child.await_log("spinning")

        child.cancel()

        assert isinstance(child.hear().end, Cancelled)
        assert isinstance(child.predict(do="echo").end, Done)


def test_a_cancel_that_comes_first_keeps_user_code_from_starting(child: ChildProcess) -> None:
    child.cancel("early")
    child.check_health()  # so it was there before

    heard = child.predict("early", do="echo", text="never")

    assert names(heard) == ["Cancelled"]
    assert heard.end.predict_time == 0


def test_a_late_cancel_hits_nobody(child: ChildProcess) -> None:
    child.predict("one", do="echo")
    child.cancel("one")
    child.check_health()

    assert isinstance(child.predict("two", do="echo").end, Done)
    assert isinstance(child.predict("one", do="echo").end, Done)


def test_an_early_cancel_whose_prediction_never_comes_hits_nobody(child: ChildProcess) -> None:
    child.cancel("absent")
    child.check_health()

    assert isinstance(child.predict("another", do="echo").end, Done)
    assert isinstance(child.predict("absent", do="echo").end, Done)


def test_cancels_for_another_id_or_slot_hit_nobody(async_child: ChildProcess) -> None:
    async_child.start("mine", slot=1, do="forever")
    async_child.await_log("waiting", slot=1)

    async_child.cancel("other", slot=1)
    async_child.cancel("mine", slot=2)
    async_child.check_health()

    assert isinstance(async_child.predict("innocent", slot=2, do="echo").end, Done)
    async_child.cancel("mine", slot=1)
    assert isinstance(async_child.hear(1).end, Cancelled)


def test_a_cancel_twice_is_told_once(async_child: ChildProcess) -> None:
    async_child.start(do="swallow")
    async_child.await_log("waiting")

    async_child.cancel()
    async_child.cancel()

    assert async_child.hear().logs == "swallowed\n"


def test_who_cancels_himself_has_failed(child: ChildProcess) -> None:
    do = {1: "cancel_itself", 8: "cancels_itself"}[len(child.slots)]

    end = child.predict(do=do).end

    assert isinstance(end, Failed)
    assert end.error.split(":")[0] in ("CancelationException", "CancelledError")


def test_an_error_that_says_cancelled_is_an_error(async_child: ChildProcess) -> None:
    assert async_child.predict(do="says_cancelled").end.error == "RuntimeError: the operation was cancelled"


def test_a_predictor_that_cancels_all_tasks_harms_itself_alone(async_child: ChildProcess) -> None:
    async_child.start("waits", slot=3, do="forever")
    async_child.await_log("waiting", slot=3)

    assert isinstance(async_child.predict(do="cancels_everything").end, Failed)

    assert isinstance(async_child.hear(3).end, Failed)
    assert isinstance(async_child.predict(do="echo").end, Done)


@pytest.mark.parametrize("name", ["wide", "wide_async"])
def test_a_generator_is_told_where_it_waits(name: str) -> None:
    """The server does not read, so the child waits in its own code; the generator has not run ahead."""
    with ChildProcess(f"{PREDICTORS / 'wide_streams.py'}:{name}") as child:
        child.set_up()
        child.start()
        _await_full(child)
        child.cancel()
        child.check_health()  # so that it was there before there is room again

        heard = child.hear()

    assert isinstance(heard.end, Cancelled)
    assert heard.logs == "told at the yield\n"
    assert len(heard.chunks) <= 2


@pytest.mark.parametrize("seed", range(3))
def test_no_cancel_is_lost(child: ChildProcess, seed: int) -> None:
    """At any moment, from before the prediction to its middle: an endless prediction ends."""
    chance = random.Random(seed)
    do = {1: "spin_and_print", 8: "busy"}[len(child.slots)]
    moments = _Moments(chance)
    for number in range(1000):
        id = f"{seed}-{number}"
        if chance.random() < 0.2:
            child.cancel(id)
            child.start(id, do=do)
        else:
            child.start(id, do=do)
            moments.pass_by()
            child.cancel(id)

        assert isinstance(child.hear().end, Cancelled)


def test_a_cancel_is_not_lost_in_a_destructor(sync_child: ChildProcess) -> None:
    moments = _Moments(random.Random(1))
    for number in range(50):
        sync_child.start(f"d{number}", do="destructors")
        sync_child.await_log("spinning")
        moments.pass_by()
        sync_child.cancel(f"d{number}")

        assert isinstance(sync_child.hear().end, Cancelled)


@pytest.mark.parametrize("seed", range(3))
def test_no_cancel_hits_the_next_prediction(child: ChildProcess, seed: int) -> None:
    """Short predictions are cancelled at any moment up to after their end; those in between stay unharmed."""
    chance = random.Random(seed)
    moments = _Moments(chance)
    ends = []
    for number in range(400):
        n_turns = chance.choice((0, 0, 100, 3000))  # the last takes longer than the cancel
        child.start(f"{number}", do="echo_late", text="mine", number=n_turns)
        moments.pass_by()
        if is_over := chance.random() < 0.1:
            ends.append(type(child.hear().end))
        child.cancel(f"{number}")
        if not is_over:
            ends.append(type(child.hear().end))

        heard = child.predict(f"{number}-innocent", do="echo", text="innocent")

        assert heard.chunks == ["innocent"]
        assert names(heard) == ["OutputChunk", "Done"]
    assert set(ends) == {Cancelled, Done}  # else the moments were not what they are meant to be


def _await_full(child: ChildProcess) -> None:
    """Until the child can send no more on its slot, and would long have run ahead: it answers on control meanwhile."""
    n_before, n_same = 0, 0
    while n_same < 300:
        child.check_health()
        n_now = _n_readable(child)
        n_same = n_same + 1 if n_now == n_before > 0 else 0
        n_before = n_now


def _n_readable(child: ChildProcess) -> int:
    return int.from_bytes(fcntl.ioctl(child.sockets[1], termios.FIONREAD, bytes(4)), sys.byteorder)


class _Moments:
    """Waits that are too short for a sleep, of random length."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def pass_by(self) -> None:
        for _ in range(self._chance.randrange(0, 4000)):
            pass
