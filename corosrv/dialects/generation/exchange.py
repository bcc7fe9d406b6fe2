"""The flow of a generating request, the same in every dialect: read, translate, submit, answer whole or streamed.

A task that failed fails the request that it belongs to; `failure_of` says with which error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
from flask import Response, request

from corosrv.base.errors import (
    CorosrvError,
    JobFailed,
    JobOverdue,
    JobPutOff,
    JobRefused,
    JobWaitedTooLong,
    NotFound,
    PromptTooLong,
    Refused,
)
from corosrv.contracts.jobs import AnyJob, Chunk, Finish, ModelCard, Reader, Worker
from corosrv.dialects.generation.call import Answer, Call, Read
from corosrv.dialects.generation.forks import ForkableAnswer, ForkFields, ForkTable
from corosrv.dialects.generation.job_usage import JobRecord, submit
from corosrv.images.intake import ImageIntake
from corosrv.images.reader import CAPABILITY, ImageReader
from corosrv.web.groups import GROUP_FIELD, GroupMember, GroupTable, join_group
from corosrv.web.http import body_reader, sse
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.client import collect
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.reply import json_response
from corosrv.web.http.sse import StreamLimits
from corosrv.web.http.terms import IgnoredFields, request_terms
from corosrv.web.kept.keyed_answers import KeyedAnswers

FailureOf = Callable[[Chunk], CorosrvError | None]

# By the code of an error chunk; any other is a bug, or a failed decode.
_KINDS: dict[str, type[JobFailed]] = {
    **dict.fromkeys(("grammar_dead_end", "grammar_too_slow", "all_tokens_banned", "embeds_not_finite"), JobRefused),
    "server_shutting_down": JobPutOff,
    "queue_timeout": JobWaitedTooLong,
    "deadline_exceeded": JobOverdue,
}

# Clients that sent a schema know of no grammar.
_WORDS = {
    "grammar_dead_end": "no token of this model continues the answer in the form that it must have",
    "grammar_too_slow": "the form that the answer must have is too ambiguous to be followed",
}


def failure_of(chunk: Chunk) -> JobFailed | None:
    """Returns why a terminal chunk's task failed, or None where it did not."""
    if chunk.finish is Finish.ERROR:
        return _KINDS.get(chunk.code, JobFailed)(_WORDS.get(chunk.code, chunk.text), chunk.code or None)
    return JobFailed("the request was cancelled") if chunk.finish is Finish.CANCELLED else None


def failures_in_group(member: GroupMember) -> FailureOf:
    """Makes the function that returns why a task of a group's member failed.

    After an abort a task that was cancelled did not, if partial answers are kept.
    """

    def failure(chunk: Chunk) -> CorosrvError | None:
        if chunk.finish is not Finish.CANCELLED or not member.is_aborted:
            return failure_of(chunk)
        return None if member.keeps_partial else member.error()

    return failure


def until_failure(
    chunks: Sequence[Chunk], find_failure: FailureOf = failure_of
) -> tuple[Sequence[Chunk], CorosrvError | None]:
    """Returns the chunks before the first one whose task failed, and its failure."""
    for number, chunk in enumerate(chunks):
        if chunk.finish is not None and (failure := find_failure(chunk)) is not None:
            return chunks[:number], failure
    return chunks, None


HEAD_SECONDS = 1.0  # for which a stream that has not started keeps its status back

T = TypeVar("T")
View = TypeVar("View", bound=Callable[..., Response])


def _check_start(find_failure: FailureOf, chunks: list[Chunk]) -> None:
    """Raises the failure of a job that has nothing else to tell."""
    answered, failure = until_failure(chunks, find_failure)
    if failure is not None and not answered:
        raise failure


class JobEvents:
    """Makes a stream's events from the chunks of one job, which may fail; see corosrv.web.http.sse.Encoder."""

    __slots__ = ("_answer", "_failure_of", "_member", "_record", "failure")

    def __init__(
        self, answer: Answer, record: JobRecord, member: GroupMember | None = None, find_failure: FailureOf = failure_of
    ) -> None:
        self.failure: CorosrvError | None = None
        self._answer = answer
        self._record = record
        self._member = member
        self._failure_of = find_failure

    def encode(self, chunks: list[Chunk]) -> bytes:
        self._record.add(chunks)
        answered, self.failure = until_failure(chunks, self._failure_of)
        if self.failure is None:
            return self._answer.events(answered)
        events = self._answer.events(answered) if answered else b""
        return events + self._answer.failure(self.failure)

    def encode_error(self, error: CorosrvError) -> bytes:
        return self._answer.failure(error)

    def close(self) -> None:
        self._record.end()
        if self._member is not None:
            self._member.leave()


@dataclass(frozen=True, slots=True)
class RequestFlow:
    """Takes the requests of every dialect and answers them; its worker does the work."""

    worker: Worker
    bodies: BodyReader
    max_body_bytes: int
    streams: StreamLimits
    answers: KeyedAnswers
    groups: GroupTable
    images: ImageReader
    takes_embeds: bool = False  # the setting prompt_embeds
    logs_json: bool = False
    ignored: IgnoredFields = field(default_factory=IgnoredFields)
    forks: ForkTable = field(default_factory=ForkTable)
    controlled: WeakValueDictionary[tuple[str, str], Any] = field(default_factory=WeakValueDictionary)

    def once(self, view: View) -> View:
        """Wraps a view so that it answers a request once, however often it is repeated with its Idempotency-Key."""
        return self.answers.once(self.max_body_bytes)(view)

    def receive(self, decoder: msgspec.json.Decoder[T], most: int | None = None) -> T:
        """Reads the current request's body and decodes it. Waits; raises Refused, which names the field at fault.

        `most`: bytes that it may have, where these are fewer than elsewhere. Members that the decoder's type does not
        know are ignored, and told by a header of the answer.
        """
        incoming = current(request)
        limit = self.max_body_bytes if most is None else min(most, self.max_body_bytes)
        text = self.bodies.read(incoming, limit)
        decoded = body_reader.decode(incoming, text, decoder)
        self.ignored.note(text, decoder.type)
        return decoded

    def intake(self, card: ModelCard, keeps_files: bool = False) -> ImageIntake | None:
        """Makes the reader of one request's images for this model; None where the model takes none."""
        return self.images.intake(keeps_files) if CAPABILITY in card.capabilities else None

    def count(self, call: Call) -> int:
        """Counts the tokens of the prompt that this call would have, also of one that is too long for the context.

        May wait; raises as `answer` does, and PromptTooLong for a prompt of so many bytes that nobody counts them.
        """
        (prompt,) = call.job.prompts
        try:
            return self.worker.vocabulary(call.job.model).count(prompt)
        except PromptTooLong as error:
            if error.is_estimate:
                raise
            return error.n_tokens

    def collect(self, job: AnyJob, priority: int | None = None) -> list[Chunk]:
        """Submits a job and waits for all its chunks. Raises ClientGone, and JobFailed when one of its tasks failed,
        whereupon the others are cancelled. `priority`: the body's."""
        return self._collect(job, priority, None, failure_of)

    def _collect(
        self,
        job: AnyJob,
        priority: int | None,
        member: GroupMember | None,
        find_failure: FailureOf,
        forkable: ForkableAnswer | None = None,
        card: ModelCard | None = None,
        read: Read | None = None,
        controlled: str = "",
    ) -> list[Chunk]:
        reader, record = self._submit(replace(job, terms=request_terms(priority)), forkable, card, read, controlled)
        try:
            if member is not None:
                member.bind(reader.cancel)
            return collect(current(request), reader, find_failure, record.add)
        finally:
            record.end()

    def answer(self, call: Call) -> Response:
        """Submits the call's job and answers as the call asks.

        Waits for an answer that is not streamed, and HEAD_SECONDS at most for the start of one that is: a job that is
        refused until then has the status of its error, by which clients and proxies decide whether to try again.
        """
        member = join_group(self.groups) if GROUP_FIELD in current(request).environ else None
        if member is None:
            return self._answer(call, None, failure_of)
        try:
            answer = self._answer(call, member, failures_in_group(member))
        except BaseException:
            member.leave()
            raise
        if not call.stream:
            member.leave()
        return answer

    def _answer(self, call: Call, member: GroupMember | None, find_failure: FailureOf) -> Response:
        if not call.stream:
            chunks = self._collect(
                call.job, call.priority, member, find_failure, call.forkable, call.card, call.read, call.controlled
            )
            return json_response(call.answer.complete(chunks))
        job = replace(call.job, stream=True, terms=request_terms(call.priority))
        reader, record = self._submit(job, call.forkable, call.card, call.read, call.controlled)
        if member is not None:
            member.bind(reader.cancel)
        stream = sse.EventStream(
            request.environ,
            reader,
            call.answer.first(),
            JobEvents(call.answer, record, member, find_failure),
            self.streams if call.ping_interval is None else replace(self.streams, ping_interval=call.ping_interval),
            sse.BLANK if call.is_lines else sse.PING,
        )
        stream.wait_for_start(HEAD_SECONDS, functools.partial(_check_start, find_failure))
        return sse.response(stream, sse.LINES if call.is_lines else sse.EVENTS)

    def _submit(
        self,
        job: AnyJob,
        forkable: ForkableAnswer | None,
        card: ModelCard | None,
        read: Read | None,
        controlled: str,
    ) -> tuple[Reader[Chunk], JobRecord]:
        """Submits a job, and keeps its answer where it may be forked, and its reader where that may be controlled.

        Waits and raises as job_usage.submit does.
        """
        if forkable is not None:
            self.forks.keep(forkable, caller())
        reader, record = submit(self.worker, job, self.logs_json, forkable, card)
        if controlled:
            self.controlled[caller(), controlled] = reader
        return reader if read is None else read(reader), record

    def end_thoughts(self, id: str) -> bool:
        """Ends the thoughts of the caller's answer with this id; returns whether one is being made."""
        reader = self.controlled.get((caller(), id))
        if reader is None or reader.is_finished:
            return False
        reader.end_thoughts()
        return True

    def forked(self, fork: ForkFields, model: str | None, ask_others: Callable[[str], list[bytes]]) -> ForkableAnswer:
        """Returns the answer that a request forks; `model`: that it names.

        `ask_others`: returns what other worker processes tell of an answer with this id. Waits for them; loads a model
        only if one of them has it. Raises NotFound where there is no such answer, or its model was unloaded since, and
        Refused for another model.
        """
        try:
            answer = self.forks.find(fork.of, caller())
        except NotFound:
            if not (told := ask_others(fork.of)):
                raise
            answer = ForkableAnswer.from_told(told[0], self.worker.card)
        card = answer.card
        cards = self.worker.models()
        if not any((other.id, other.created, other.status) == (card.id, card.created, "loaded") for other in cards):
            words = f"the model '{card.id}' was unloaded since it gave {answer.id}, and nothing is left to go on from"
            raise NotFound(f"fork.of: {words}", "fork.of", "answer_not_found")
        named = next((other.id for other in cards if model in (other.id, *other.aliases)), None)
        if named not in (None, card.id):
            raise Refused(f"model: {answer.id} is an answer of '{card.id}', which its branches go on with", "model")
        return answer
