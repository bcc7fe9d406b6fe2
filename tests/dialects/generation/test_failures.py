"""Tasks that fail: what becomes of their chunks, of their stream and of their neighbours."""

import pytest

from corosrv.base.errors import CorosrvError, JobFailed, JobOverdue, JobPutOff, JobRefused, JobWaitedTooLong
from corosrv.contracts.jobs import Chunk, Finish
from corosrv.dialects.generation.exchange import JobEvents, failure_of, until_failure
from corosrv.dialects.generation.job_usage import JobRecord

HELLO = Chunk(0, "Hello", 1)
END = Chunk(0, "", 0, Finish.STOP)


class TextAnswer:
    """A corosrv.dialects.generation.exchange.Answer in plain text."""

    def complete(self, chunks: list[Chunk]) -> str:
        return "".join(chunk.text for chunk in chunks)

    def first(self) -> bytes:
        return b""

    def events(self, chunks: list[Chunk]) -> bytes:
        return f"<{self.complete(chunks)}>".encode()

    def failure(self, error: CorosrvError) -> bytes:
        return f"error: {error}".encode()


@pytest.mark.parametrize(
    ("chunk", "kind", "words"),
    [
        (Chunk(0, "the model broke", 0, Finish.ERROR), JobFailed, "the model broke"),
        (
            Chunk(0, "grammar_dead_end: x", 0, Finish.ERROR, code="grammar_dead_end"),
            JobRefused,
            "no token of this model continues the answer in the form that it must have",
        ),
        (Chunk(0, "no numbers", 0, Finish.ERROR, code="embeds_not_finite"), JobRefused, "no numbers"),
        (Chunk(0, "over", 0, Finish.ERROR, code="deadline_exceeded"), JobOverdue, "over"),
        (Chunk(0, "stopping", 0, Finish.ERROR, code="server_shutting_down"), JobPutOff, "stopping"),
        (Chunk(0, "no slot", 0, Finish.ERROR, code="queue_timeout"), JobWaitedTooLong, "no slot"),
        (Chunk(0, "", 0, Finish.CANCELLED), JobFailed, "the request was cancelled"),
    ],
)
def test_a_failed_task_is_an_error_of_its_kind(chunk: Chunk, kind: type[JobFailed], words: str):
    failure = failure_of(chunk)

    assert (type(failure), str(failure)) == (kind, words)


@pytest.mark.parametrize("chunk", [HELLO, END, Chunk(0, "", 0, Finish.LENGTH)])
def test_other_chunks_are_no_failure(chunk: Chunk):
    assert until_failure([chunk]) == ([chunk], None)


def test_what_came_before_a_failure_is_sent_before_its_event():
    events = JobEvents(TextAnswer(), JobRecord("req-1", "tiny", 1))

    sent = events.encode([HELLO, Chunk(1, "it broke", 0, Finish.ERROR), Chunk(0, " and on", 1)])

    assert sent == b"<Hello>error: it broke"
    assert str(events.failure) == "it broke"


def test_a_failure_alone_is_its_event():
    assert (
        JobEvents(TextAnswer(), JobRecord("req-1", "tiny", 1)).encode([Chunk(0, "it broke", 0, Finish.ERROR)])
        == b"error: it broke"
    )


def test_without_a_failure_the_stream_goes_on():
    events = JobEvents(TextAnswer(), JobRecord("req-1", "tiny", 1))

    assert (events.encode([HELLO, END]), events.failure) == (b"<Hello>", None)
