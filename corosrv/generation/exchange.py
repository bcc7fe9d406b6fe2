"""The flow of a generating request, the same in every dialect: read, translate, submit, answer whole or streamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from flask import Response, request

from corosrv.errors import CorosrvError
from corosrv.generation.fields import Defaults
from corosrv.http import body, sse
from corosrv.http.callers import asked_for
from corosrv.http.metrics import HttpStats
from corosrv.http.reply import json_response
from corosrv.jobs import AnyJob, Chunk, Job, Worker

T = TypeVar("T")


class Answer(Protocol):
    """A dialect's translation out, for one request: chunks to a whole answer, or to events."""

    def whole(self, chunks: list[Chunk]) -> Any:
        """The answer that is not streamed, to be JSON. Raises JobFailed when a task ended in an error."""

    def first(self) -> bytes:
        """What is sent as soon as the job is taken; at least a comment, which carries the headers."""

    def events(self, chunks: list[Chunk]) -> bytes:
        """These chunks on the wire, and the end of the stream after the last. Raises JobFailed as `whole` does."""

    def failure(self, error: CorosrvError) -> bytes:
        """An error after the first byte, and the end of the stream."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request translated: the job, and what makes its answer from the job's chunks."""

    job: AnyJob
    stream: bool
    answer: Answer


@dataclass(frozen=True, slots=True)
class Limits:
    """How requests are read and answered; see the settings of the same names."""

    max_body_bytes: int
    ping_interval: float
    write_timeout: float


@dataclass(frozen=True, slots=True)
class RequestFlow:
    """What every dialect's routes are handed: who does the work, and how requests are taken and answered."""

    worker: Worker
    defaults: Defaults
    limits: Limits
    stats: HttpStats

    def receive(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Reads the current request's body and decodes it. Waits; raises Refused, which names the field at fault."""
        return body.decode(request, body.read(request, self.limits.max_body_bytes), decoder)

    def count(self, call: Call) -> int:
        """Tokens of the prompt that this call would have. May wait; raises as `answer` does."""
        assert isinstance(call.job, Job)
        (prompt,) = call.job.prompts
        return self.worker.vocabulary(call.job.model).count(prompt)

    def collect(self, job: AnyJob) -> list[Chunk]:
        """Submits a job and waits for all its chunks. Raises ClientGone."""
        return sse.collect(request, self.worker.submit(asked_for(job)))

    def answer(self, call: Call) -> Response:
        """Submits, and answers in the way that the call asks for. Waits for an answer that is not streamed."""
        reader = self.worker.submit(asked_for(call.job))
        answer = call.answer
        if not call.stream:
            return json_response(answer.whole(sse.collect(request, reader)))
        return sse.response(
            sse.EventStream(
                request.environ,
                reader,
                answer.first(),
                answer.events,
                answer.failure,
                self.limits.ping_interval,
                self.limits.write_timeout,
                self.stats,
            )
        )
