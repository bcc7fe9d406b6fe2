"""A clock that does not count what the process slept through."""

from __future__ import annotations

import pytest

from corosrv.base.waits import AwakeClock


class Hands:
    """A monotonic clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def clock(hands: Hands) -> AwakeClock:
    """A clock whose beats come each second, and had one just now."""
    clock = AwakeClock(hands, interval=1.25)
    clock.beat()
    return clock


def test_without_beats_it_is_the_monotonic_clock(hands: Hands) -> None:
    clock = AwakeClock(hands)
    before = clock.now()

    hands.now += 60

    assert clock.now() - before == 60


def test_with_punctual_beats_it_runs_as_the_monotonic_clock_does(clock: AwakeClock, hands: Hands) -> None:
    before = clock.now()
    for _ in range(10):
        hands.now += 1
        clock.beat()

    assert clock.now() - before == 10


def test_a_pause_is_not_counted_before_the_late_beat_nor_after(clock: AwakeClock, hands: Hands) -> None:
    hands.now += 0.5
    before = clock.now()

    hands.now += 60
    assert clock.now() == before
    clock.beat()
    assert clock.now() == before

    hands.now += 1
    assert clock.now() - before == 1


def test_it_never_goes_backwards(clock: AwakeClock, hands: Hands) -> None:
    seen = []
    for step in (0.5, 0.6, 0.5, 3.0, 0.1, 1.2, 0.3, 9.0):
        hands.now += step
        seen.append(clock.now())
        if step < 1:
            clock.beat()
            seen.append(clock.now())

    assert seen == sorted(seen)


def test_a_clock_whose_beats_were_stopped_runs_on(clock: AwakeClock, hands: Hands) -> None:
    clock.stop()
    before = clock.now()

    hands.now += 60

    assert clock.now() - before == 60
