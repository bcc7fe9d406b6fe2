"""The common part of chat and text completions' answers: members, order of events, usage, errors, end of a stream.

`LlamaExtras` is what llama-server adds to them: how far a job is, and the answer in its own form.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from corosrv.base.errors import CorosrvError, ErrorKind, PromptTooLong
from corosrv.contracts.jobs import Chunk, Job, ModelCard, Vocabulary
from corosrv.contracts.jobs.job import new_id
from corosrv.dialects.generation.call import AnswerOptions, Telemetry, event
from corosrv.dialects.generation.job_usage import Tally
from corosrv.dialects.generation.native import NativeForm, NativeTask
from corosrv.dialects.openai.answer_types import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    CompletionTokensDetails,
    ErrorAnswer,
    ErrorMembers,
    Finish,
    PromptTokensDetails,
    TextChoice,
    TextCompletion,
    Usage,
)

if TYPE_CHECKING:
    from corosrv.dialects.openai.structured_fields import CompletionFields


def native_form(
    body: CompletionFields, job: Job, card: ModelCard, find_vocabulary: Callable[[], Vocabulary]
) -> NativeForm:
    """Makes the form of the native answer, for a body that asks for one (`verbose`). May wait as `tokenize` does."""
    return NativeForm.for_job(
        job, card, find_vocabulary(), bool(body.stream), bool(body.return_tokens), bool(body.timings_per_token)
    )


class LlamaExtras:
    """Makes the members that one answer's events have in addition to OpenAI's."""

    __slots__ = ("_tasks", "_telemetry", "is_wanted")

    def __init__(self, n_tasks: int, options: AnswerOptions) -> None:
        self._telemetry = Telemetry(n_tasks, options)
        form = options.native_form
        self._tasks = [] if form is None else [NativeTask(index, form) for index in range(n_tasks)]
        self.is_wanted = self._telemetry.is_wanted or bool(self._tasks)

    @classmethod
    def for_answer(cls, n_tasks: int, options: AnswerOptions) -> LlamaExtras:
        """Makes the extras of one answer; all answers that want none share the same, which has no state."""
        wants_some = options.token_timings or options.prompt_progress or options.native_form is not None
        return cls(n_tasks, options) if wants_some else _NO_EXTRAS

    def progress(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Yields the extra members of the progress events that are sent before this chunk's events."""
        return self._telemetry.progress(chunk)

    def add(self, chunk: Chunk) -> dict[str, Any]:
        """Takes each chunk once, in order; returns the extra members of the events with its text."""
        if self._tasks:
            self._tasks[chunk.index].add(chunk)
        return self._telemetry.timings(chunk)

    def at_end(self, chunk: Chunk) -> dict[str, Any]:
        """Returns the extra members of the event or answer that ends this terminal chunk's task."""
        return {"verbose": self._tasks[chunk.index].final(chunk)} if self._tasks else {}

    def of_answer(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Returns the extra members of an answer that is not streamed; of several choices, the first one's."""
        if not self._tasks:
            return {}
        for chunk in chunks:
            self.add(chunk)
        return self.at_end(next(chunk for chunk in chunks if chunk.index == 0 and chunk.finish is not None))


_NO_EXTRAS = LlamaExtras(0, AnswerOptions())


_TYPES = {
    ErrorKind.INVALID_REQUEST: "invalid_request_error",
    ErrorKind.CONTEXT_EXCEEDED: "exceed_context_size_error",
    ErrorKind.TOO_LARGE: "invalid_request_error",
    ErrorKind.UNAUTHORIZED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.NOT_OFFERED: "not_supported_error",
    ErrorKind.RATE_LIMITED: "rate_limit_error",
    ErrorKind.UNAVAILABLE: "unavailable_error",
    ErrorKind.CLIENT_GONE: "client_closed_request",
    ErrorKind.CONFLICT: "invalid_request_error",
    ErrorKind.DEADLINE_PASSED: "server_error",
    ErrorKind.WORKER_LOST: "server_error",
    ErrorKind.FAILED: "server_error",
}


def body(error: CorosrvError) -> ErrorAnswer:
    """Makes the answer or the event for an error."""
    members = ErrorMembers(str(error), _TYPES[error.kind], error.param, error.code)
    if isinstance(error, PromptTooLong):
        members.n_prompt_tokens, members.n_ctx = error.n_tokens, error.context
    return ErrorAnswer(members)


DONE = b"data: [DONE]\n\n"

encode = msgspec.json.encode


def finish_word(reason: str) -> Finish:
    """Returns the finish reason of a choice. One that was cancelled has the word of vLLM and SGLang, `abort`."""
    return "abort" if reason == "cancelled" else cast(Finish, reason)


def usage(tally: Tally, reasoning_tokens: int = 0, has_compute: bool = False) -> Usage:
    details = CompletionTokensDetails(reasoning_tokens)
    if tally.is_predicted:
        details.accepted_prediction_tokens = tally.accepted_tokens
        details.rejected_prediction_tokens = tally.drafted_tokens - tally.accepted_tokens
    return Usage(
        tally.prompt_tokens,
        tally.completion_tokens,
        tally.prompt_tokens + tally.completion_tokens,
        PromptTokensDetails(tally.cached_tokens, tally.image_tokens),
        details,
        round(tally.compute_ms, 3) if has_compute else msgspec.UNSET,
    )


class Frame:
    """Makes events from the choices of one answer, and what follows the last of them."""

    __slots__ = ("_answer_type", "_has_compute", "_include_usage", "_n_open", "members")

    def __init__(
        self,
        answer_type: type[ChatCompletion] | type[ChatChunk] | type[TextCompletion],
        id_prefix: str,
        object: str,
        model: ModelCard,
        n_choices: int,
        options: AnswerOptions,
    ) -> None:
        """`answer_type` is the type of the events, or of the answer that is not streamed."""
        self._answer_type: Callable[..., Any] = answer_type
        self.members = {
            "id": new_id(id_prefix),
            "object": object,
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": model.fingerprint,
        }
        if options.service_tier:
            self.members["service_tier"] = options.service_tier
        self._include_usage = options.usage
        self._has_compute = options.compute
        self._n_open = n_choices

    @property
    def id(self) -> str:
        return str(self.members["id"])

    def text_frame(self, prefix: bytes, suffix: bytes) -> tuple[bytes, bytes]:
        """Returns what precedes and follows the text of an event, whose choice has `prefix` and `suffix` around it."""
        end = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"
        return b"data: " + encode(self.members)[:-1] + b',"choices":[' + prefix, suffix + end

    def event(self, choice: ChunkChoice | TextChoice, **extras: Any) -> bytes:
        """Makes the event of one choice; `extras` are members of the answer's type."""
        if self._include_usage:
            extras["usage"] = None
        return event(self._answer([choice], **extras))

    def end(self, choice: ChunkChoice | TextChoice, tally: Tally, reasoning_tokens: int = 0, **extras: Any) -> bytes:
        """Makes the event that ends a choice; after the last one also usage, timings and the end of the stream."""
        self._n_open -= 1
        if self._n_open:
            return self.event(choice, **extras)
        if not self._include_usage:
            return self.event(choice, timings=tally.timings(), **extras) + DONE
        last = self._answer([], usage=usage(tally, reasoning_tokens, self._has_compute), timings=tally.timings())
        return self.event(choice, **extras) + event(last) + DONE

    def complete(
        self, choices: Sequence[ChatChoice | TextChoice], tally: Tally, reasoning_tokens: int = 0, **extras: Any
    ) -> Any:
        """Makes the answer that is not streamed."""
        shown = usage(tally, reasoning_tokens, self._has_compute)
        return self._answer(choices, usage=shown, timings=tally.timings(), **extras)

    def _answer(self, choices: Sequence[ChatChoice | ChunkChoice | TextChoice], **extras: Any) -> Any:
        return self._answer_type(**self.members, choices=choices, **extras)


def failure(error: CorosrvError) -> bytes:
    """Makes the event that ends a stream in an error; no `[DONE]` follows."""
    return event(body(error))
