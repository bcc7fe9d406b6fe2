"""Which errors of a server leave a request for its peers."""

from __future__ import annotations

import pytest

from corosrv.base.errors import (
    BodyTooLarge,
    CallRefused,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    HttpError,
    JobPutOff,
    LoopDetected,
    ModelFailed,
    ModelNotFound,
    NoCapacity,
    NotFound,
    NotHandedOver,
    NoWorker,
    ObjectNotFound,
    QueueFull,
    ShuttingDown,
    Starting,
    Unauthorized,
    Unavailable,
    WorkerLost,
)
from corosrv.fleet.upstreams.failures import UpstreamBusy
from corosrv.gateway.delegation.delegator import Reason, is_for_peers, reason_of
from corosrv.workers.wire.faults import error_of_failure

UNKNOWN = [
    ModelNotFound("m"),
    NotFound("m", "model_name", "model_not_found"),
    NotFound("c", "capability", "capability_not_found"),
    HttpError(404, "no such path"),
]
NOT_READY = [Starting("s"), ModelFailed("f"), NoWorker("w"), NotHandedOver("h")]
FULL = [QueueFull("q"), NoCapacity("n"), UpstreamBusy("u", 1.0)]
ANSWERS = [
    NotFound("of a handler", None, "not_found"),
    Unavailable("of a handler"),
    ObjectNotFound("o"),
    WorkerLost("it may have run"),
    JobPutOff("it may have run"),
    DeadlinePassed("late"),
    ShuttingDown("the next one is to be asked by the client"),
    Unauthorized("no key"),
    BodyTooLarge(5),
    CallRefused("bad"),
    HandlerFailed("bug"),
    LoopDetected("was here"),
    HttpError(405, "method"),
]


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_what_is_unknown_here_is_for_peers(error: CorosrvError):
    assert reason_of(error) is Reason.UNKNOWN
    assert is_for_peers(error, on_full=False)


@pytest.mark.parametrize("error", NOT_READY, ids=repr)
def test_what_nothing_here_runs_now_is_for_peers(error: CorosrvError):
    assert reason_of(error) is Reason.UNAVAILABLE
    assert is_for_peers(error, on_full=False)


@pytest.mark.parametrize("error", FULL, ids=repr)
def test_a_full_queue_is_for_peers_only_if_they_are_to_help_out(error: CorosrvError):
    assert reason_of(error) is Reason.FULL
    assert is_for_peers(error, on_full=True)
    assert not is_for_peers(error, on_full=False)


@pytest.mark.parametrize("error", ANSWERS, ids=repr)
def test_an_error_that_is_an_answer_goes_to_the_client(error: CorosrvError):
    assert reason_of(error) is None
    assert not is_for_peers(error, on_full=True)


@pytest.mark.parametrize("kind", ["not_found", "unavailable", "invalid_input"])
def test_what_a_handler_raises_is_an_answer(kind: str):
    assert reason_of(error_of_failure(kind, "its words")) is None
