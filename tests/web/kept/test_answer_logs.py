"""Logs of answers: numbers, bounds, followers, and what time does to them; the clock is the test's."""

from __future__ import annotations

import gevent
import pytest

from corosrv.base.errors import EventsGone, Refused, TooManyLogs
from corosrv.web.kept.answer_log import EVENT_COST, LOG_COST, AnswerLog, StreamReader
from corosrv.web.kept.answer_logs import AnswerLogs, OwnerLogs
from tests.support.engines import TIMEOUT


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logs(clock: Clock) -> AnswerLogs:
    return AnswerLogs(max_bytes=100_000, log_bytes=20_000, resume_s=60, kept_s=300, n_callers=2, clock=clock)


@pytest.fixture
def mine(logs: AnswerLogs) -> OwnerLogs:
    return logs.owned_by("me")


def opened(owner: OwnerLogs, name: str = "a") -> AnswerLog:
    log = owner.open(b"digest", lambda: cancelled.append(name))
    owner.name(log, [("key", name)])
    return log


cancelled: list[str] = []


@pytest.fixture(autouse=True)
def _none_cancelled() -> None:
    cancelled.clear()


def events(n: int, size: int = 10) -> bytes:
    return b"".join(b"data: %b\n\n" % (b"x" * size) for _ in range(n))


def read(reader: StreamReader) -> bytes:
    return b"".join(event.wire for event in reader.take_nowait())


def test_events_are_numbered_and_comments_are_not(mine: OwnerLogs):
    log = opened(mine)

    returned = log.write(b":\n\ndata: a\n\n: wait\n\nid: 77\nevent: b\ndata: id: 5\n\n")

    assert returned == b":\n\nid: 1\ndata: a\n\n: wait\n\nid: 2\nevent: b\ndata: id: 5\n\n"
    assert read(log.follow(0, "")) == returned


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_event_may_end_in_any_line_end(mine: OwnerLogs, end: bytes):
    log = opened(mine)

    assert log.write(b"data: a" + end + b"data: b" + end) == b"id: 1\ndata: a" + end + b"id: 2\ndata: b" + end


def test_lines_are_counted(mine: OwnerLogs):
    log = mine.open(b"", lambda: None, is_lines=True)

    assert log.write(b'{"a":1}\n{"b":2}\n') == b'{"a":1}\n{"b":2}\n'
    assert read(log.follow(1, "")) == b'{"b":2}\n'


def test_followers_read_what_is_there_and_what_comes(mine: OwnerLogs):
    log = opened(mine)
    log.write(b"data: a\n\ndata: b\n\n")
    early, late = log.follow(0, ""), log.follow(1, "")
    reading = gevent.spawn(lambda: [b"".join(e.wire for e in late.take()) for _ in range(2)])
    gevent.idle()

    log.write(b"data: c\n\n")
    log.end()

    assert read(early) == b"id: 1\ndata: a\n\nid: 2\ndata: b\n\nid: 3\ndata: c\n\n"
    assert b"".join(reading.get(timeout=TIMEOUT)) == b"id: 2\ndata: b\n\nid: 3\ndata: c\n\n"
    assert early.is_finished
    assert late.is_finished


def test_without_a_follower_the_oldest_go_and_are_named(mine: OwnerLogs):
    log = opened(mine)
    log.write(events(300))

    assert log.n_bytes <= 20_000
    with pytest.raises(EventsGone) as gone:
        log.follow(0, "Last-Event-ID")
    first = int(str(gone.value).split()[-1])
    assert read(log.follow(first - 1, "")).startswith(b"id: %d\n" % first)
    with pytest.raises(EventsGone):
        log.follow_bytes(1, "from")


def test_a_number_or_a_byte_that_never_was_is_refused(mine: OwnerLogs):
    log = opened(mine)
    log.write(events(2))

    with pytest.raises(Refused):
        log.follow(3, "Last-Event-ID")
    with pytest.raises(Refused):
        log.follow_bytes(1000, "from")
    assert not read(log.follow(2, ""))


def test_an_answer_waits_for_its_fastest_follower_and_for_no_other(mine: OwnerLogs):
    log = opened(mine)
    fast, slow = log.follow(0, ""), log.follow(0, "")
    log.write(events(300))
    writing = gevent.spawn(log.wait_for_room)
    gevent.idle()
    assert not writing.ready()

    got = b""
    while piece := read(fast):
        got += piece
    writing.join(timeout=TIMEOUT)

    assert writing.ready()
    assert got.count(b"id: ") == 300
    assert b"events_gone" in read(slow)
    assert slow.is_finished


def test_an_answer_that_waits_goes_on_when_its_followers_leave(mine: OwnerLogs):
    log = opened(mine)
    follower = log.follow(0, "")
    log.write(events(300))
    writing = gevent.spawn(log.wait_for_room)
    gevent.idle()

    follower.close()
    writing.join(timeout=TIMEOUT)

    assert writing.ready()
    assert log.n_bytes <= 20_000


def test_who_does_not_come_back_has_the_answer_cancelled_once(logs: AnswerLogs, mine: OwnerLogs, clock: Clock):
    log = opened(mine)
    follower = log.follow(0, "")
    clock.now += 1000
    logs.sweep()
    assert cancelled == []

    follower.close()
    clock.now += 59
    logs.sweep()
    back = log.follow(0, "")
    clock.now += 59
    logs.sweep()
    back.close()
    clock.now += 59
    logs.sweep()
    assert cancelled == []

    clock.now += 1
    logs.sweep()
    logs.sweep()
    assert cancelled == ["a"]


def test_an_answer_that_needs_no_client_runs_on(logs: AnswerLogs, mine: OwnerLogs, clock: Clock):
    opened(mine).needs_client = False

    clock.now += 10_000
    logs.sweep()

    assert cancelled == []


def test_nothing_is_left_after_the_time_that_it_is_kept(logs: AnswerLogs, mine: OwnerLogs, clock: Clock):
    log = opened(mine)
    log.write(events(5))
    log.end()

    clock.now += 299
    logs.sweep()
    assert mine.find(("key", "a")) is log
    clock.now += 1
    logs.sweep()

    assert mine.find(("key", "a")) is None
    assert (logs.n_logs, logs.n_bytes) == (0, 0)


def test_ended_logs_make_room_the_oldest_first_and_running_ones_stay(mine: OwnerLogs):
    running = opened(mine, "running")
    running.write(events(50))
    for name in "abcd":
        log = opened(mine, name)
        log.write(events(70))
        log.end()

    assert mine.n_bytes <= 50_000
    assert [mine.find(("key", name)) is not None for name in "abcd"] == [False, False, True, True]
    assert mine.find(("key", "running")) is running
    assert b"id: 1\n" in read(running.follow(0, ""))


def test_all_logs_of_a_caller_have_a_bound_and_leave_others_their_room(logs: AnswerLogs, mine: OwnerLogs):
    theirs = logs.owned_by("them")
    kept = opened(theirs)
    kept.write(events(5))
    kept.end()
    for number in range(8):
        opened(mine, str(number)).write(events(200))

    assert mine.n_bytes <= 50_000 + LOG_COST + EVENT_COST
    assert theirs.find(("key", "a")) is kept


def test_more_than_there_is_room_for_are_refused(mine: OwnerLogs):
    for number in range(50_000 // LOG_COST):
        mine.check_room()
        opened(mine, str(number))

    with pytest.raises(TooManyLogs):
        mine.check_room()


def test_no_caller_finds_the_log_of_another(logs: AnswerLogs, mine: OwnerLogs):
    opened(mine)

    assert logs.owned_by("them").find(("key", "a")) is None


def test_a_name_goes_to_the_newer_log(mine: OwnerLogs):
    older, newer = opened(mine), opened(mine)
    older.end()

    assert mine.find(("key", "a")) is newer
    assert len(mine) == 1


def test_a_follower_that_nobody_closes_does_not_hold_the_answer(mine: OwnerLogs):
    log = opened(mine)
    follower = log.follow(0, "")
    assert log.left_at is None

    del follower

    assert log.left_at is not None
