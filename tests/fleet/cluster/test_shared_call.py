"""A call in the shared queue, as the front sees it that accepted it: Redis answers as a test says."""

from __future__ import annotations

import gevent
import pytest

from corosrv.base.errors import (
    CallCancelled,
    DeadlinePassed,
    HandlerFailed,
    NotHandedOver,
    QueueFull,
    RedisRefused,
    RedisUnavailable,
    Refused,
    Unavailable,
    WorkerLost,
)
from corosrv.contracts.jobs.infer import AnswerBody
from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.call_codec import SharedEnd, encode_end, encode_outputs
from corosrv.fleet.cluster.shared_call import ACK_BYTES, SharedCall, SharedCallState
from tests.fleet.cluster.hand_driven import NAMES, HandDrivenRunner, Heard

LOST = RedisUnavailable("it was lost")


class Case:
    """One call, and both of its ends. `may_run_here`: this front could run it, too."""

    def __init__(self, *, may_run_here: bool = True) -> None:
        self.runner, self.heard, self.ended = HandDrivenRunner(), Heard(), 0
        self.call = SharedCall(
            "here.1",
            "stream",
            10,
            NAMES,
            self.runner,  # type: ignore[arg-type]
            self.heard,
            lambda call: self._count_end(),
            may_run_here=lambda: may_run_here,
        )

    def _count_end(self) -> None:
        self.ended += 1

    def queue(self) -> Case:
        self.call.on_enqueued([b"queued", b"7-0"])
        return self

    def chunk(self, data: bytes = b"piece", delivery: int = 1) -> None:
        message = {b"n": b"%d" % delivery, b"f": b"there", b"b": encode_outputs([AnswerBody(data=data)])}
        self.call.on_message(b"chunk", message)

    def end(self, n_pieces: int, delivery: int = 1, error: Exception | None = None) -> None:
        end = encode_end(SharedEnd(error=error))
        self.call.on_message(b"end", {b"n": b"%d" % delivery, b"m": b"%d" % n_pieces, b"b": end})

    @property
    def error(self) -> type[Exception] | None:
        """Returns the kind of the error that ended the call, which ends once."""
        assert len(self.heard.ends) == self.ended == 1
        assert self.call.state is SharedCallState.ENDED
        return None if self.heard.ends[0] is None else type(self.heard.ends[0])

    @property
    def n_withdrawn(self) -> int:
        return len(self.runner.of(queue_scripts.WITHDRAW))


@pytest.mark.parametrize(
    ("reply", "may_run_here", "expected"),
    [
        (LOST, True, NotHandedOver),  # it waits in this front
        (LOST, False, Unavailable),
        (RedisRefused("its memory is full", "OOM"), True, Unavailable),
    ],
    ids=["lost", "lost for elsewhere", "refused"],
)
def test_a_call_that_redis_did_not_take_runs_here_or_is_refused(reply, may_run_here, expected):
    case = Case(may_run_here=may_run_here)

    case.call.on_enqueued(reply)

    assert case.error is expected
    assert case.heard.ends[0].retry_after == 1


def test_a_full_queue_refuses_the_call():
    case = Case()

    case.call.on_enqueued([b"full", 3])

    assert case.error is QueueFull
    assert case.heard.ends[0].retry_after >= 1


@pytest.mark.parametrize(("is_deadline", "expected"), [(False, CallCancelled), (True, DeadlinePassed)])
def test_a_call_that_ends_while_it_waits_leaves_the_queue(is_deadline, expected):
    case = Case().queue()

    case.call.cancel(is_deadline=is_deadline)
    case.call.cancel()

    assert (case.error, case.n_withdrawn) == (expected, 1)
    assert case.runner.runs[0].arguments[0] == "7-0"


def test_a_call_that_ended_before_redis_had_it_leaves_the_queue_when_it_is_there():
    case = Case()
    case.call.cancel()
    assert case.n_withdrawn == 0

    case.queue()

    assert (case.error, case.n_withdrawn) == (CallCancelled, 1)


@pytest.mark.parametrize("reply", [LOST, [b"full", 3]], ids=["lost", "full"])
def test_a_call_that_has_ended_hears_no_more_of_the_queue(reply):
    case = Case()
    case.call.cancel()

    case.call.on_enqueued(reply)

    assert case.error is CallCancelled


def test_an_answer_is_whole_if_all_its_pieces_have_come():
    case = Case().queue()
    case.chunk(b"a")
    case.chunk(b"b")

    case.end(n_pieces=2)

    assert case.error is None
    assert [output.data for output in case.heard.outputs] == [b"a", b"b"]


def test_an_answer_that_lacks_a_piece_is_lost():
    case = Case().queue()
    case.chunk()

    case.end(n_pieces=2)

    assert case.error is WorkerLost


def test_pieces_of_another_delivery_are_dropped_and_its_end_is_no_end_of_the_first():
    case = Case().queue()
    case.chunk(b"a", delivery=1)
    case.chunk(b"b", delivery=2)
    assert [output.data for output in case.heard.outputs] == [b"a"]

    case.end(n_pieces=1, delivery=2)

    assert case.error is WorkerLost


def test_an_error_of_the_other_front_ends_the_call():
    case = Case().queue()

    case.end(n_pieces=0, error=Refused("it cannot be"))

    assert (case.heard.ends[0].status, str(case.heard.ends[0])) == (400, "it cannot be")


@pytest.mark.parametrize(("has_begun", "expected"), [(False, Unavailable), (True, WorkerLost)])
def test_a_call_that_redis_has_lost_ends_by_what_its_client_has(has_begun, expected):
    case = Case().queue()
    if has_begun:
        case.chunk()

    case.call.on_message(b"missing", {})

    assert case.error is expected


@pytest.mark.parametrize("message", [{b"n": b"1", b"m": b"0", b"b": b"\xc1"}, {b"n": b"1"}, {b"n": b"x", b"m": b"0"}])
def test_what_cannot_be_read_ends_the_call_and_takes_it_from_the_queue(message):
    case = Case().queue()

    case.call.on_message(b"end", message)

    assert (case.error, case.n_withdrawn) == (HandlerFailed, 1)


def test_replies_after_the_end_change_nothing():
    case = Case().queue()
    case.end(n_pieces=0)

    case.chunk()
    case.end(n_pieces=0)
    case.call.on_message(b"missing", {})

    assert case.error is None
    assert not case.heard.outputs


def test_the_front_that_sends_hears_how_much_was_read_once_the_client_has_read_it():
    case = Case().queue()
    case.chunk(b"x" * (ACK_BYTES // 2))
    gevent.idle()
    case.chunk(b"x" * ACK_BYTES)
    gevent.idle()
    assert not case.runner.of(queue_scripts.TELL)

    case.heard.room.set()
    told = case.runner.await_run(queue_scripts.TELL)

    assert told.keys == [NAMES.front_stream("there")]
    assert told.arguments[-1] >= 1.5 * ACK_BYTES


def test_nothing_is_told_of_what_was_read_before_there_is_much():
    case = Case().queue()
    case.heard.room.set()

    case.chunk(b"x" * 1000)
    gevent.idle()

    assert not case.runner.of(queue_scripts.TELL)


@pytest.mark.parametrize(("reply", "expected"), [(0, Unavailable), (1, WorkerLost)], ids=["not begun", "begun"])
def test_a_call_that_nobody_serves_is_refused_unless_it_may_have_run(reply, expected):
    case = Case().queue()

    case.call.refuse(Unavailable("nobody serves it"))
    assert not case.heard.ends
    case.runner.await_run(queue_scripts.WITHDRAW).reply(reply)

    assert case.error is expected


def test_a_call_that_redis_has_not_confirmed_is_not_refused():
    case = Case()

    case.call.refuse(Unavailable("nobody serves it"))

    assert not case.runner.runs
