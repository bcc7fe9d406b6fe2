"""Calls of this process written as requests to peers, and the answers of peers, whole and broken."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from corosrv.base.errors import (
    AnswerTooLarge,
    CorosrvError,
    ErrorKind,
    HandlerFailed,
    NotFound,
    Unavailable,
    WorkerLost,
)
from corosrv.contracts.jobs.infer import (
    AnswerBody,
    AnswerHead,
    CapabilityTarget,
    ForwardRequest,
    HandlerCard,
    Headers,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    InferRequest,
    ModelTarget,
)
from corosrv.contracts.jobs.terms import Terms
from corosrv.dialects.kserve.infer_answer import OutputEvents, encode_answer
from corosrv.dialects.kserve.infer_request import INFER_DECODER, decode_request
from corosrv.formats.tensors import Tensor
from corosrv.gateway.delegation.call import PeerRefusal
from corosrv.gateway.delegation.infer import PeerAnswers, error_of, request_of
from corosrv.workers.dispatch.answers import HandlerReader

HALF = Tensor("x", "FP16", [2], raw=b"\x00\x3c\x00\x40", parameters={"unit": "m"})
TEXT = Tensor("t", "BYTES", [1], data=[b"\xff\n\n"])
CARD = HandlerCard("m", "2")
EVENTS: Headers = (("Content-Type", "text/event-stream; charset=utf-8"),)
OWN = NotFound("not here")
NOTHING = InferRequest()
LIMIT = 1 << 16


def job(**terms: Any) -> InferJob:
    request = InferRequest((HALF, TEXT), "q", {"mood": "good"}, ("y",))
    return InferJob(ModelTarget("a model", "2"), request, terms=Terms(**terms))


def answers(
    *items: AnswerHead | bytes,
    error: CorosrvError | None = None,
    refusal: PeerRefusal | None = None,
    request: InferRequest = NOTHING,
) -> tuple[PeerAnswers, list[InferItem]]:
    """Reads a call whose reader gives these items and this end; returns the reading and what it yields."""
    reader = HandlerReader(CARD, lambda: None)
    for item in items:
        reader.add(AnswerBody(data=item) if isinstance(item, bytes) else item, 0)
    reader.end(error)
    call: Any = SimpleNamespace(reader=reader, refusal=refusal, own_error=OWN, served_by="b")
    read = PeerAnswers(call, InferJob(ModelTarget("m"), request), LIMIT)
    return read, list(read)


def end_of(items: list[InferItem]) -> CorosrvError | None:
    *_, last = items
    assert isinstance(last, InferEnd)
    return last.error


def test_a_peer_reads_the_call_that_was_written():
    written = request_of(job(), "token")
    headers = dict(written.headers)

    read = decode_request(written.body, headers["Inference-Header-Content-Length"], INFER_DECODER)

    assert written.path == "/v2/models/a%20model/versions/2/infer"
    assert (read.request, read.is_binary("y")) == (job().request, True)
    assert "Accept" not in headers


def test_the_terms_of_a_call_are_in_its_headers():
    deadline = time.monotonic() + 30
    said = (("traceparent", "00-a-b-01"), ("x-gateway-inference-objective", "premium"))
    headers = dict(request_of(job(caller="ab", request_id="r", priority=2, deadline=deadline, idempotency_key="k",
                                  session="s", headers=said), "token").headers)  # fmt: skip

    assert 0 < int(headers["X-Request-Timeout-Ms"]) <= 30_000
    assert dict(said).items() <= headers.items()
    assert {"X-Corosrv-Token": "token", "X-Corosrv-Caller": "ab", "X-Request-Id": "r", "X-Priority": "2",
            "Idempotency-Key": "k", "X-Session-Id": "s"}.items() <= headers.items()  # fmt: skip


def test_a_query_goes_on_with_its_preferences():
    target = CapabilityTarget({"type": "embed", "ctx": {"gte": 8}}, {"tier=small": 2.0}, True)
    written = request_of(InferJob(target, InferRequest()), "token")

    body = msgspec.json.decode(written.body)
    assert written.path == "/v2/capabilities/infer"
    assert (body["capability"], body["prefer"], body["fuzzy"]) == (target.query, target.prefer, True)


def test_a_question_about_a_model_goes_on_and_its_answer_comes_as_it_is():
    question = ForwardRequest(method="GET", path="/ready")
    written = request_of(InferJob(ModelTarget("m", "2"), question), "token")

    _, items = answers(AnswerHead(), b'{"ready": true}', request=question)

    assert (written.method, written.path, written.body) == ("GET", "/v2/models/m/versions/2/ready", b"")
    assert items == [AnswerBody(data=b'{"ready": true}'), InferEnd()]


def test_an_answer_is_read_as_it_was_given():
    given = InferOutputs((HALF, TEXT), {"seen": 1})
    encoded = encode_answer(CARD, None, given, lambda name: True, LIMIT)
    head = AnswerHead(status=200, headers=(("inference-header-content-length", str(len(encoded.pieces[0]))),))

    read, items = answers(head, *map(bytes, encoded.pieces))

    assert items == [InferOutputs(given.outputs, given.parameters), InferEnd()]
    assert (read.card.name, read.card.version, read.card.is_stream) == ("m", "2", False)


@pytest.mark.parametrize("size", [1, 7, LIMIT])
def test_a_stream_is_read_as_it_was_given_however_it_is_cut(size: int):
    given = [InferOutputs((TEXT,), {"n": n}, is_final=n == 1) for n in range(2)]
    events = OutputEvents(HandlerCard("m", "2", is_stream=True)).encode([*given, InferEnd(HandlerFailed("late"))])
    sent = b": wait\n\n" + events

    read, (*items, end) = answers(
        AnswerHead(headers=EVENTS), *[sent[at : at + size] for at in range(0, len(sent), size)]
    )

    assert items == given
    assert isinstance(end, InferEnd)
    assert str(end.error) == "late"
    assert (read.card.name, read.card.is_stream) == ("m", True)


@pytest.mark.parametrize("sent", [b"", b'data: {"error": "lost"}\n\n', b"data: \xff\n\n"])
def test_a_stream_without_its_end_is_lost(sent: bytes):
    _, items = answers(AnswerHead(headers=EVENTS), sent)

    assert isinstance(error := end_of(items), WorkerLost)
    assert str(error) == "the replica b broke its stream off"


WITHOUT_CONTENT = b'{"model_name": "m", "outputs": [{"name": "x", "datatype": "FP16", "shape": [2]}]}'


@pytest.mark.parametrize("body", [b"", b"<html>", WITHOUT_CONTENT])
def test_an_answer_that_is_none_is_lost(body: bytes):
    _, items = answers(AnswerHead(), body)

    assert isinstance(end_of(items), WorkerLost)


@pytest.mark.parametrize("headers", [(), EVENTS])
def test_an_answer_beyond_the_limit_is_not_held(headers: Headers):
    _, items = answers(AnswerHead(headers=headers), b"x" * (LIMIT + 1))

    assert isinstance(end_of(items), AnswerTooLarge)


def test_this_server_s_error_stands_unless_a_peer_was_busy():
    busy = PeerRefusal(AnswerHead(status=429, headers=(("retry-after", "7"),)), b'{"error": "full"}', "b")

    assert end_of(answers(error=OWN)[1]) is OWN
    error = end_of(answers(error=OWN, refusal=busy)[1])
    assert isinstance(error, Unavailable)
    assert (str(error), error.status, error.retry_after) == ("full", 429, 7)
    lost = WorkerLost("while a peer had it")
    assert end_of(answers(error=lost, refusal=busy)[1]) is lost


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ErrorKind.INVALID_REQUEST),
        (404, ErrorKind.NOT_FOUND),
        (409, ErrorKind.CONFLICT),
        (422, ErrorKind.INVALID_REQUEST),
        (500, ErrorKind.FAILED),
        (501, ErrorKind.NOT_OFFERED),
        (502, ErrorKind.WORKER_LOST),
        (504, ErrorKind.DEADLINE_PASSED),
    ],
)
def test_a_status_is_the_error_that_it_stands_for(status: int, kind: ErrorKind):
    error = error_of(AnswerHead(status=status), b'{"error": "words"}')

    assert (str(error), error.status, error.kind) == ("words", status, kind)
    assert str(error_of(AnswerHead(status=status), b"<html>")) == f"a peer answered {status}"
