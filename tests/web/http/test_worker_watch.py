"""Only workers that hang are killed."""

from __future__ import annotations

from corosrv.web.http.worker_watch import Silence

PID = 7


def seconds(looks: list[tuple[float, float]], stopped: frozenset[float] = frozenset()) -> float:
    """What is counted after looks at these times, with the heartbeat seen at each; at some the worker is stopped."""
    silence = Silence()
    counted = 0.0
    for now, heartbeat in looks:
        counted = silence.look(now, {PID: heartbeat}, {PID} if now in stopped else set())[PID]
    return counted


def test_silence_is_counted_from_the_last_heartbeat_on() -> None:
    assert seconds([(1, 1), (2, 2), (3, 2), (4, 2), (5, 2)]) == 3


def test_a_heartbeat_ends_the_silence() -> None:
    assert seconds([(1, 1), (2, 1), (3, 1), (4, 4)]) == 0


def test_a_pause_of_both_counts_as_one_look() -> None:
    assert seconds([(1, 1), (2, 2), (36, 2)]) == 2


def test_a_stopped_worker_is_not_silent() -> None:
    assert seconds([(1, 1), (2, 1), (3, 1), (4, 1)], stopped=frozenset((3, 4))) == 1


def test_a_worker_with_the_pid_of_one_that_ended_begins_anew() -> None:
    silence = Silence()
    for now in (1, 2, 3):
        silence.look(now, {PID: 1}, set())
    silence.look(4, {}, set())

    assert silence.look(5, {PID: 1}, set()) == {PID: 0}
