"""A call that came out of the shared queue, as the front sees it that runs it: Redis answers as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from corosrv.base.errors import CorosrvError, HandlerFailed, NotHandedOver, RedisUnavailable, Refused, ShuttingDown
from corosrv.contracts.jobs.infer import AnswerBody, ForwardRequest, HandlerCard, InferJob
from corosrv.fleet.cluster import delivery, queue_scripts
from corosrv.fleet.cluster.call_codec import RemoteError, SharedRequest, decode_end, encode_call
from corosrv.fleet.cluster.delivery import WINDOW, Delivered, DeliveredCalls
from corosrv.workers.dispatch.reader import HandlerReader
from tests.fleet.cluster.hand_driven import NAMES, HandDrivenRunner
from tests.support.waiting import wait_until

REQUEST = ForwardRequest(method="POST", path="/v1/chat/completions", headers=(), body=b"{}")
BODY = encode_call(SharedRequest(REQUEST, stream=True))
CARD = HandlerCard("m", is_stream=True)
LOST = RedisUnavailable("it was lost")


def entry(call: str = "there.1", number: int = 1) -> Delivered:
    return Delivered("app", "model:m", "stream", "7-0", number, call, "there", None, BODY)


class Case:
    """A front that runs calls of others, and the reader of the last one."""

    def __init__(self) -> None:
        self.runner = HandDrivenRunner()
        self.calls = DeliveredCalls(NAMES, self.runner, 15_000)  # type: ignore[arg-type]
        self.jobs: list[InferJob] = []
        self.readers: list[HandlerReader] = []
        self.n_cancelled = 0
        self.n_started = 0
        self.failure: CorosrvError | None = None  # of submit

    def submit(self, job: InferJob) -> HandlerReader:
        self.jobs.append(job)
        if self.failure is not None:
            raise self.failure
        self.readers.append(HandlerReader(CARD, self._cancel))
        return self.readers[-1]

    def _cancel(self) -> None:
        self.n_cancelled += 1

    def _start(self) -> None:
        self.n_started += 1

    def begin(self, delivered: Delivered | None = None) -> None:
        self.calls.begin(delivered or entry(), CARD, self.submit, self._start)

    def reply(self, text: str, reply: Any, number: int = 1) -> None:
        self.runner.await_run(text, number).reply(reply)

    def run(self) -> HandlerReader:
        """Begins a call, and lets it start."""
        self.begin()
        self.reply(queue_scripts.START, b"run")
        wait_until(lambda: self.readers, "it runs")
        return self.readers[-1]

    def send(self, data: bytes, number: int) -> None:
        """Has the handler send a piece, which is the front's chunk of this number."""
        self.readers[-1].add(AnswerBody(data=data), len(data))
        self.runner.await_run(queue_scripts.CHUNK, number)

    def end(self) -> CorosrvError | None:
        """Waits until the call is answered, and returns the error that it has then."""
        finish = self.runner.await_run(queue_scripts.FINISH)
        finish.reply(1)
        wait_until(lambda: len(self.calls) == 0, "it is over")
        return decode_end(finish.arguments[-1]).error


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(delivery, "RETRY_PAUSE", 0)
    yield Case()
    gevent.idle()


@pytest.mark.parametrize(("number", "is_claimed"), [(1, 0), (2, 1)])
def test_a_start_says_whether_another_front_had_the_call(case: Case, number: int, is_claimed: int):
    case.begin(entry(number=number))

    start = case.runner.await_run(queue_scripts.START)

    assert start.arguments == ("7-0", "here", number, is_claimed)
    start.reply(b"gone")


def test_an_overdue_call_is_answered_and_does_not_run(case: Case):
    case.begin()
    case.reply(queue_scripts.START, b"overdue")

    error = case.end()

    assert error is not None
    assert (error.status, case.jobs, case.n_started) == (504, [], 1)


@pytest.mark.parametrize("fate", [b"other", b"gone"])
def test_a_call_that_another_front_has_is_left_to_it(case: Case, fate: bytes):
    case.begin()
    case.reply(queue_scripts.START, fate)
    wait_until(lambda: len(case.calls) == 0, "it is over")

    assert (case.jobs, case.runner.of(queue_scripts.FINISH), case.n_started) == ([], [], 1)


def test_a_start_is_tried_again_while_redis_is_away(case: Case):
    case.begin()
    case.reply(queue_scripts.START, LOST)
    case.reply(queue_scripts.START, b"run", number=2)

    wait_until(lambda: case.readers, "it runs")


def test_a_call_that_has_its_permit_says_so_once(case: Case):
    case.run().end(None)
    wait_until(lambda: case.n_started, "it says so")

    case.end()

    assert case.n_started == 1


def test_a_call_that_cannot_run_here_now_goes_back(case: Case):
    case.failure = ShuttingDown("it stops")
    case.begin()
    case.reply(queue_scripts.START, b"run")

    case.reply(queue_scripts.RELEASE, 1)
    wait_until(lambda: len(case.calls) == 0, "it is over")

    assert not case.runner.of(queue_scripts.FINISH)


def test_a_call_that_is_refused_here_is_refused(case: Case):
    case.failure = Refused("it cannot be")
    case.begin()
    case.reply(queue_scripts.START, b"run")

    error = case.end()

    assert error is not None
    assert (error.status, str(error)) == (400, "it cannot be")


@pytest.mark.parametrize("error", [ShuttingDown("it stops"), NotHandedOver("it was not")], ids=["stop", "no worker"])
def test_a_call_of_which_nothing_has_run_goes_back(case: Case, error: CorosrvError):
    case.run().end(error)

    case.reply(queue_scripts.RELEASE, 1)
    wait_until(lambda: len(case.calls) == 0, "it is over")

    assert not case.runner.of(queue_scripts.FINISH)


@pytest.mark.parametrize("error", [ShuttingDown("it stops"), NotHandedOver("it was not"), HandlerFailed("it failed")])
def test_a_call_whose_answer_has_begun_ends_here(case: Case, error: CorosrvError):
    reader = case.run()
    case.send(b"piece", 1)

    reader.end(error)

    assert isinstance(case.end(), RemoteError)
    assert not case.runner.of(queue_scripts.RELEASE)


def test_a_call_that_nobody_wants_any_more_is_cancelled_and_not_answered(case: Case):
    reader = case.run()

    case.calls.on_message("there.1", b"cancel", {})
    reader.end(HandlerFailed("it was cancelled"))
    wait_until(lambda: len(case.calls) == 0, "it is over")

    assert case.n_cancelled
    assert not case.runner.of(queue_scripts.FINISH)


def test_a_call_that_another_front_has_taken_is_given_up(case: Case):
    reader = case.run()

    case.calls.renew()
    case.reply(queue_scripts.RENEW, [0])

    assert case.n_cancelled == 1
    reader.end(HandlerFailed("it was cancelled"))
    wait_until(lambda: len(case.calls) == 0, "it is over")
    assert not case.runner.of(queue_scripts.FINISH)


@pytest.mark.parametrize("reply", [[], LOST], ids=["none lost", "no reply"])
def test_a_call_that_is_renewed_goes_on(case: Case, reply: Any):
    reader = case.run()

    case.calls.renew()
    case.reply(queue_scripts.RENEW, reply)

    assert case.n_cancelled == 0
    reader.end(None)
    assert case.end() is None


def test_a_call_that_has_not_started_is_not_given_up(case: Case):
    case.begin()
    case.calls.renew()
    case.reply(queue_scripts.RENEW, [0])  # START will tell
    case.reply(queue_scripts.START, b"run")

    wait_until(lambda: case.readers, "it runs")
    assert case.n_cancelled == 0


def test_a_piece_that_nobody_takes_cancels_the_call(case: Case):
    case.run()
    case.send(b"piece", 1)

    case.reply(queue_scripts.CHUNK, 0)

    assert case.n_cancelled == 1
    assert not case.runner.of(queue_scripts.FINISH)


def test_an_answer_of_which_a_piece_may_be_lost_ends_in_an_error(case: Case):
    reader = case.run()
    case.send(b"piece", 1)

    case.reply(queue_scripts.CHUNK, LOST)
    finish = case.runner.await_run(queue_scripts.FINISH)

    error = decode_end(finish.arguments[-1]).error
    assert error is not None
    assert (error.status, case.n_cancelled) == (503, 1)
    finish.reply(1)
    reader.end(HandlerFailed("it was cancelled"))


def test_no_more_than_a_window_is_under_way_unread(case: Case):
    reader = case.run()
    case.send(b"x" * (WINDOW + 1), 1)

    reader.add(AnswerBody(data=b"next"), 4)
    gevent.idle()
    assert len(case.runner.of(queue_scripts.CHUNK)) == 1

    case.calls.on_message("there.1", b"ack", {b"n": b"1000"})
    case.runner.await_run(queue_scripts.CHUNK, 2)
    reader.end(None)
    assert case.end() is None


def test_an_answer_that_nobody_reads_is_given_up(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delivery, "LONGEST_STALL", 0.01)
    case.run()
    case.send(b"x" * (WINDOW + 1), 1)

    finish = case.runner.await_run(queue_scripts.FINISH)
    finish.reply(1)

    assert isinstance(decode_end(finish.arguments[-1]).error, RemoteError)
    wait_until(lambda: case.n_cancelled, "it is cancelled")


def test_an_entry_that_this_front_has_claimed_from_itself_runs_once(case: Case):
    case.run()

    case.begin(entry(number=2))

    assert (len(case.runner.of(queue_scripts.START)), case.n_started) == (1, 2)


# After Redis was away.


def test_calls_that_run_are_told_again_and_those_that_have_not_started_are_not(case: Case):
    case.run()
    case.begin(entry("there.2"))

    case.calls.reassert()

    assert [run.arguments for run in case.runner.of(queue_scripts.REASSERT)] == [("7-0", "here", 1)]


def test_ends_of_late_are_told_again(case: Case):
    case.run().end(None)
    case.end()

    case.calls.reassert()

    first, again = case.runner.of(queue_scripts.FINISH)
    assert (again.keys, again.arguments) == (first.keys, first.arguments)


@pytest.mark.parametrize(("limit", "value"), [("RECENT_S", 0.5), ("RECENT_ENDS", 1), ("RECENT_BYTES", 1)])
def test_only_few_ends_and_recent_ones_are_kept(case: Case, limit: str, value: Any, monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(delivery, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(delivery, limit, value)
    for number in (1, 2):
        case.begin(entry(f"there.{number}"))
        case.reply(queue_scripts.START, b"run", number)
        wait_until(lambda number=number: len(case.readers) == number, "it runs")
        case.readers[-1].end(None)
        case.reply(queue_scripts.FINISH, 1, number)
        now = 1.0

    case.calls.reassert()

    assert [run.arguments[3] for run in case.runner.of(queue_scripts.FINISH)] == ["there.1", "there.2", "there.2"]
