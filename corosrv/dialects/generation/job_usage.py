"""Counts what jobs use: a `Tally` for an answer, a `JobRecord` for the bill, the trace and a line of log."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from corosrv.contracts.jobs import AnyJob, Chunk, EmbedJob, Finish, Job, Messages, ModelCard, Reader, Worker
from corosrv.contracts.jobs.terms import Bill, TracePart
from corosrv.dialects.generation.forks import ForkableAnswer

log = logging.getLogger("corosrv.jobs")

_STOP = Finish.STOP.value
_NORMAL = frozenset((_STOP, Finish.LENGTH.value))
_TEXT = (
    "job %(id)s of model %(model)s ended: %(outcome)s, %(prompt_tokens)d prompt tokens (%(cached_tokens)d cached), "
    "%(generated_tokens)d generated, %(prompt_ms)d ms of prompt, %(decode_ms)d ms of decoding, %(seconds).2f s in all"
)


class Timings(msgspec.Struct):
    """llama-server's timings: `cache_n` prompt tokens were known, `prompt_n` computed, `predicted_n` generated.

    `draft_n` guesses of next tokens were computed, and `draft_n_accepted` came true; left out where there were none.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | msgspec.UnsetType = msgspec.UNSET
    draft_n_accepted: int | msgspec.UnsetType = msgspec.UNSET


class PromptProgress(msgspec.Struct):
    """Progress of reading a prompt, for streams with `return_progress`."""

    total: int
    cache: int
    processed: int
    time_ms: int


@dataclass(slots=True)
class Tally:
    """Counts over the tasks of a job that have ended; prompt tokens count once, however many answers (`n`) each prompt
    gets."""

    n: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    is_predicted: bool = False  # the job says what its answers are expected to be
    prompt_ms: float = 0.0
    decode_ms: float = 0.0
    compute_ms: float = 0.0  # of the machine, for all tasks together

    def add(self, chunk: Chunk) -> None:
        self.completion_tokens += chunk.n_tokens
        if chunk.finish is None:
            return
        self.prompt_ms = max(self.prompt_ms, chunk.prompt_ms)
        self.decode_ms = max(self.decode_ms, chunk.decode_ms)
        self.compute_ms += chunk.compute_ms
        self.drafted_tokens += chunk.drafted_tokens
        self.accepted_tokens += chunk.accepted_tokens
        if chunk.index % self.n == 0:
            self.prompt_tokens += chunk.prompt_tokens
            self.cached_tokens += chunk.cached_tokens
            self.image_tokens += chunk.image_tokens

    def as_of(self, chunk: Chunk) -> Tally:
        """Returns the tally of a single task at the moment when this chunk was made, which tells tokens."""
        return replace(
            self,
            prompt_tokens=chunk.prompt_tokens,
            cached_tokens=chunk.cached_tokens,
            drafted_tokens=chunk.drafted_tokens,
            accepted_tokens=chunk.accepted_tokens,
            prompt_ms=chunk.prompt_ms,
            decode_ms=chunk.decode_ms,
        )

    def timings(self) -> Timings:
        """Returns llama-server's timings; the rates leave out the first token, which comes from the prompt's batch."""
        computed = self.prompt_tokens - self.cached_tokens
        n_after_first = max(self.completion_tokens - 1, 0)
        return Timings(
            cache_n=self.cached_tokens,
            prompt_n=computed,
            prompt_ms=self.prompt_ms,
            prompt_per_token_ms=self.prompt_ms / computed if computed else 0.0,
            prompt_per_second=1000.0 * computed / self.prompt_ms if self.prompt_ms else 0.0,
            predicted_n=self.completion_tokens,
            predicted_ms=self.decode_ms,
            predicted_per_token_ms=self.decode_ms / n_after_first if n_after_first else 0.0,
            predicted_per_second=1000.0 * n_after_first / self.decode_ms if self.decode_ms else 0.0,
            draft_n=self.drafted_tokens or msgspec.UNSET,
            draft_n_accepted=self.accepted_tokens if self.drafted_tokens else msgspec.UNSET,
        )


def submit(
    worker: Worker, job: AnyJob, as_json: bool, forkable: ForkableAnswer | None = None, card: ModelCard | None = None
) -> tuple[Reader[Chunk], JobRecord]:
    """Submits a job and begins its record, which has to be told of its chunks and its end; opens its bill before.

    `card`: of the job's model, where the caller has it. May wait while the model is loaded or the prompt is read;
    raises as `worker` does, and LimitReached.
    """
    card = card or worker.card(job.model)
    model = card.id
    bill = None
    if (account := job.terms.account) is not None:
        n, most = (job.n, job.max_tokens) if isinstance(job, Job) else (1, 0)
        bill = account.open_bill(job.n_tasks, n, most)
        job = replace(job, terms=replace(job.terms, bill=bill))
    if (trace := job.terms.trace) is not None:
        trace = begin_trace(trace, job, model)
        job = replace(job, terms=replace(job.terms, trace=trace))
    record = JobRecord(job.terms.request_id, model, job.n_tasks, as_json, bill, forkable, trace, card.parent)
    try:
        return worker.submit(job), record
    except BaseException as error:
        if bill is not None:
            bill.drop()
        if trace is not None:
            trace.end(error=type(error).__name__)
        raise


def begin_trace(trace: TracePart, job: AnyJob, model: str) -> TracePart:
    """Begins the job's part of a trace, with OpenTelemetry's names for generation. Nothing of a prompt is in it."""
    trace.name_model(model)
    if not trace.trace_id:
        return trace
    operation = "text_completion" if isinstance(job, Job) else "embeddings" if isinstance(job, EmbedJob) else "rerank"
    attributes: dict[str, Any] = {"gen_ai.provider.name": "corosrv", "gen_ai.request.model": model}
    if isinstance(job, Job):
        if any(isinstance(prompt, Messages) for prompt in job.prompts):
            operation = "chat"
        attributes["gen_ai.request.temperature"] = job.sampling.temperature
        attributes["gen_ai.request.stream"] = job.stream
        if job.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = job.max_tokens
    return trace.begin(f"{operation} {model}", attributes | {"gen_ai.operation.name": operation})


class JobRecord:
    """Counts what one job uses, and writes its line once: when its last task has ended, or at `end`.

    An answer that may be forked later gets the chunks from here, too.
    """

    __slots__ = (
        "_as_json", "_began", "_bill", "_cached_tokens", "_compute_ms", "_decode_ms", "_first_at", "_forkable",
        "_generated_tokens", "_id", "_model", "_n_running", "_outcome", "_parent", "_prompt_ms", "_prompt_tokens",
        "_trace"
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        model: str,
        n_tasks: int,
        as_json: bool = False,
        bill: Bill | None = None,
        forkable: ForkableAnswer | None = None,
        trace: TracePart | None = None,
        parent: str = "",
    ) -> None:
        """`id`: the request's; `model`: the name of the model that was asked, of which `parent` may be the one that it
        is an adapter of. `bill`: to settle at the end; `trace`: the job's own part of it, to end then."""
        self._id = id
        self._model = model
        self._parent = parent
        self._as_json = as_json
        self._bill = bill
        self._forkable = forkable
        self._trace = trace
        self._n_running = n_tasks
        self._compute_ms: dict[int, float] = {}  # by index, of the tasks whose end was not read
        self._began = time.monotonic()
        self._first_at = math.inf  # when its first chunk was read, where that is for a trace
        self._outcome = _STOP
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0
        self._prompt_ms = self._decode_ms = 0.0

    def add(self, chunks: Sequence[Chunk]) -> None:
        if self._forkable is not None:
            self._forkable.add(chunks)
        if self._trace is not None and self._first_at == math.inf:
            self._first_at = time.monotonic()
        for chunk in chunks:
            self._generated_tokens += chunk.n_tokens
            if chunk.finish is None:
                self._compute_ms[chunk.index] = chunk.compute_ms
            else:
                self._add_last(chunk, chunk.finish)

    def _add_last(self, chunk: Chunk, finish: Finish) -> None:
        self._prompt_tokens += chunk.prompt_tokens
        self._cached_tokens += chunk.cached_tokens
        self._prompt_ms = max(self._prompt_ms, chunk.prompt_ms)
        self._decode_ms = max(self._decode_ms, chunk.decode_ms)
        if self._bill is not None:
            self._bill.add_end(chunk)
        self._compute_ms.pop(chunk.index, None)
        self._n_running -= 1
        if finish is not Finish.STOP:
            self._outcome = chunk.code or finish.value
        if self._n_running == 0 or self._outcome not in _NORMAL:
            self.end(self._outcome)

    def end(self, outcome: str = Finish.CANCELLED.value) -> None:
        """Settles the bill and writes the line, once. `outcome`: a finish, or a word for what went wrong."""
        if self._n_running < 0:
            return
        self._n_running = -1
        if self._bill is not None:
            self._bill.close(self._generated_tokens, sum(self._compute_ms.values()))
        if self._trace is not None:
            self._end_trace(self._trace, outcome)
        level = logging.DEBUG if outcome in _NORMAL else logging.INFO
        if log.isEnabledFor(level):
            self._write(level, outcome)

    def _end_trace(self, trace: TracePart, outcome: str) -> None:
        total = time.monotonic() - self._began
        prompt, decode = self._prompt_ms / 1000, self._decode_ms / 1000
        if prompt or decode:  # of a job that ended early nothing is known
            trace.add_past("queue", total, max(total - prompt - decode, 0.0))
            trace.add_past("prefill", prompt + decode, prompt, {"corosrv.cached_tokens": self._cached_tokens})
            trace.add_past("decode", decode, decode)
            # A stream that is read late ends late, and a job without one may have all its tokens in its last chunk.
            first_token = min(self._first_at - self._began, max(total - decode, 0.0))
            trace.note_job(self._parent or self._model, max(first_token - prompt, 0.0), first_token)
        usage = {
            "gen_ai.usage.input_tokens": self._prompt_tokens,
            "gen_ai.usage.output_tokens": self._generated_tokens,
            "gen_ai.response.model": self._model,
            "gen_ai.response.finish_reasons": (outcome,),
        }
        trace.end(usage, "" if outcome in _NORMAL else outcome)

    def _write(self, level: int, outcome: str) -> None:
        members = {
            "id": self._id,
            "model": self._model,
            "outcome": outcome,
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": self._cached_tokens,
            "generated_tokens": self._generated_tokens,
            "prompt_ms": round(self._prompt_ms, 1),
            "decode_ms": round(self._decode_ms, 1),
            "seconds": round(time.monotonic() - self._began, 3),
        }
        text = _TEXT
        if self._trace is not None and self._trace.trace_id:
            members["trace"] = self._trace.trace_id
            text += ", trace %(trace)s"
        log.log(level, "%s", json.dumps({"event": "job_ended", **members}) if self._as_json else text % members)
