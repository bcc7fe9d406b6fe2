"""The encoder takes turns with the decode loop where the processors do not suffice for both."""

import os

import pytest

from corosrv.base import errors
from corosrv.contracts.settings import ModelSettings
from corosrv.images.vision.engine import encoder_share
from corosrv.images.vision.turns import EncoderTurns
from corosrv.models.engine.libllama import physical_cores
from tests.support.descriptors import n_descriptors

CORES = physical_cores()


class HandEngine:
    """Keeps what an engine is told: the process behind each descriptor, None for none, its share and its times."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[tuple[int | None, float, float, float]] = []
        self._error = error

    def set_side_process(self, pidfd: int, share: float, itl_s: float, usual_s: float) -> None:
        if self._error is not None:
            raise self._error
        self.told.append((None if pidfd < 0 else pid_of(pidfd), share, itl_s, usual_s))

    def side_process_held(self) -> float:
        if self._error is not None:
            raise self._error
        return 1.5


def pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))


def test_the_loop_is_told_of_each_change_once():
    engine = HandEngine()
    turns = EncoderTurns(engine, 0.1, 0.05)
    first, second = os.getpid(), os.getppid()

    for pid, number in ((None, 0), (first, 1), (first, 1), (first, 2), (second, 1), (None, 0), (None, 0)):
        turns.set_encoding(pid, number, usual_s=3.0)

    assert [told[0] for told in engine.told] == [first, first, second, None]
    assert {told[1:] for told in engine.told} == {(0.1, 0.05, 3.0)}


def test_a_share_that_is_not_set_is_left_to_the_loop():
    engine = HandEngine()

    EncoderTurns(engine, None, 0.05).set_encoding(os.getpid(), 1, 3.0)

    assert engine.told == [(os.getpid(), 0.0, 0.05, 3.0)]


def test_the_time_of_turns_is_the_loops_and_none_of_an_engine_that_is_closed():
    assert EncoderTurns(HandEngine(), None, 0.05).held_seconds() == 1.5
    assert EncoderTurns(HandEngine(errors.UsedAfterClose("the engine is closed")), None, 0.05).held_seconds() == 0.0


def test_without_a_share_the_loop_is_told_nothing():
    engine = HandEngine()

    EncoderTurns(engine, 0.0, 0.05).set_encoding(os.getpid())

    assert engine.told == []


@pytest.mark.own_process
@pytest.mark.parametrize("error", [None, errors.UsedAfterClose("the engine is closed"), OSError("no descriptor")])
def test_no_descriptor_is_left_open(error):
    n_open = n_descriptors()

    EncoderTurns(HandEngine(error), 0.1, 0.05).set_encoding(os.getpid())

    assert n_descriptors() == n_open


def test_a_process_that_has_ended_needs_no_turns():
    engine = HandEngine()
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)

    EncoderTurns(engine, 0.1, 0.05).set_encoding(pid)

    assert engine.told == []


@pytest.mark.parametrize(
    ("threads", "encoder_threads", "share"),
    [(0, 0, 0.3), (CORES, 1, 0.3), (1, CORES, 0.3), (1, CORES - 1, 0.0)],
    ids=["as many as cores each", "one too many", "one too many to encode", "a core for each"],
)
def test_turns_are_taken_where_the_cores_do_not_suffice(threads, encoder_threads, share):
    if threads and encoder_threads == 0:
        pytest.skip("there is one core")
    settings = ModelSettings(threads=threads, encoder_threads=encoder_threads, encoder_share=0.3)

    assert encoder_share(settings) == share
