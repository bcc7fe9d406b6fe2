"""Makes the decode loop's tasks of jobs: prompts become tokens, and samplers, grammars and adapters are looked up.

`TaskMaker` knows the model alone, and may work in another process than the engine; `TaskPlacer` gives the tasks what
only their engine knows. Embedding rows get private ids there: equal ids stand for equal rows, so that prefixes are
compared by ids alone.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from corosrv.base.errors import NotSupported, Refused
from corosrv.base.waits import ThreadLock
from corosrv.contracts.jobs import (
    Adapter,
    AnyJob,
    EmbedJob,
    Job,
    Pieces,
    RerankJob,
    Rows,
    Terms,
    ThoughtBudget,
    token_biases,
)
from corosrv.models.engine.binding import Task, TaskKind
from corosrv.models.engine.marks import Piece
from corosrv.models.engine.slots import TaskNote, TaskNotes
from corosrv.models.engine.vocabulary import ROW_ID, EngineVocabulary

FIRST_ID, LAST_ID = -2, -(2**31)  # -1 stands for rows without an id of their own
MAX_CONTENTS = 65_536

Key = tuple[str, int, int, bytes, str]


class RowIds:
    """Gives each content of one caller an id, which all its rows have. Any thread may call.

    The same numbers at other positions, or seen in another way, are another content.

    Keeps the ids of the contents used last; one that was forgotten gets a new id, and what was computed of it is not
    found again. No id is given twice: when none is left, rows have none, and share nothing until the model is loaded
    anew.
    """

    def __init__(self, limit: int = MAX_CONTENTS, last_id: int = LAST_ID) -> None:
        self._limit = limit
        self._last_id = last_id
        self._next = FIRST_ID
        self._lock = ThreadLock()
        self._ids: OrderedDict[Key, int] = OrderedDict()

    def of_rows(self, rows: Rows, caller: str) -> int | None:
        """Returns the id of these rows, or None where there is none left."""
        key = rows.sha256, rows.n, rows.width, _reading_of(rows), caller
        with self._lock:
            row_id = self._ids.get(key)
            if row_id is not None:
                self._ids.move_to_end(key)
                return row_id
            if self._next < self._last_id:
                return None
            row_id, self._next = self._next, self._next - 1
            self._ids[key] = row_id
            if len(self._ids) > self._limit:
                self._ids.popitem(last=False)
            return row_id


def _reading_of(rows: Rows) -> bytes:
    """Returns the hash of how rows are read; nothing for those that are read as tokens are."""
    if rows.is_read_as_tokens:
        return b""
    return hashlib.sha256(struct.pack("<?i", rows.is_non_causal, rows.n_positions) + rows.positions).digest()


class Adapters:
    """LoRA adapters in the order they were loaded in. Any thread may call: scales are replaced all at once."""

    def __init__(self, loaded: Iterable[tuple[str, float]]) -> None:
        """`loaded`: the path of each, and its scale where a job does not say."""
        self._adapters = tuple(Adapter(id, Path(path).name, scale) for id, (path, scale) in enumerate(loaded))
        self.set_scales = tuple(adapter.scale for adapter in self._adapters)  # for jobs that name no adapters

    def list(self) -> tuple[Adapter, ...]:
        return self._adapters

    def set(self, scales: Mapping[int, float]) -> None:
        """Sets the scales for jobs that name no adapters; adapters not listed are off. Raises Refused."""
        checked = self._checked(scales)
        self._adapters = tuple(replace(adapter, scale=checked.get(adapter.id, 0.0)) for adapter in self._adapters)
        self.set_scales = tuple(adapter.scale for adapter in self._adapters)

    def scales(self, named_scales: Iterable[tuple[int, float]]) -> tuple[float, ...]:
        """Returns the scale of each adapter for a job that names some. Raises Refused."""
        checked = self._checked(dict(named_scales))
        return tuple(checked.get(adapter.id, 0.0) for adapter in self._adapters)

    def _checked(self, scales: Mapping[int, float]) -> Mapping[int, float]:
        for id, scale in scales.items():
            if not 0 <= id < len(self._adapters):
                there_are = (
                    f"they are numbered from 0 to {len(self._adapters) - 1}" if self._adapters else "there is none"
                )
                raise Refused(f"lora: {id} is no adapter of this model: {there_are}", "lora")
            if not math.isfinite(scale):
                raise Refused(f"lora: the scale of adapter {id} must be a finite number", "lora")
        return scales


MAX_STOP_BYTES = 256


class TaskMaker:
    """Makes tasks of jobs; waits while long prompts are tokenised. Any thread may call. All methods raise Refused."""

    def __init__(
        self,
        vocabulary: EngineVocabulary,
        adapters: Adapters,
        slots: int,
        shifts_context: bool = False,
        guesses: bool = False,
    ) -> None:
        """`adapters`: those that jobs may name."""
        self._vocabulary = vocabulary
        self._adapters = adapters
        self._slots = slots
        self._shifts_context = shifts_context
        self._guesses = guesses

    def make(self, job: AnyJob) -> list[Task]:
        """Makes a task for each answer. Raises LimitReached for a caller that has not enough left for them."""
        if isinstance(job, RerankJob):
            tasks = self._scores(job)
        elif isinstance(job, EmbedJob):
            tasks = self._vectors(job)
        else:
            tasks = self._generations(job)
        if job.terms.bill is not None:
            job.terms.bill.charge([len(task.tokens) for task in tasks])
        return tasks

    def _scores(self, job: RerankJob) -> list[Task]:
        prompts = self._vocabulary.encode_pairs(job.query, job.documents)
        place = _place(job.terms)
        scales = None if job.lora is None else self._adapters.scales(job.lora)
        return [Task(tokens, kind=TaskKind.RANK, adapter_scales=scales, **place) for tokens in prompts]

    def _vectors(self, job: EmbedJob) -> list[Task]:
        if any(isinstance(prompt, Pieces) for prompt in job.prompts):
            raise NotSupported("input: embedding rows cannot be embedded", "input")
        prompts = self._vocabulary.encode_inputs(job.prompts)
        place = _place(job.terms)
        scales = None if job.lora is None else self._adapters.scales(job.lora)
        return [
            Task(
                tokens,
                kind=TaskKind.EMBED,
                pools=job.pooling,
                normalize=job.normalize,
                adapter_scales=scales,
                **place,
            )
            for tokens in prompts
        ]

    def _generations(self, job: Job) -> list[Task]:
        if not -1 <= job.slot < self._slots:
            there_are = f"they are numbered from 0 to {self._slots - 1}"
            raise Refused(f"id_slot: there is no slot {job.slot}: {there_are}", "id_slot")
        prompts = [self._read(job, number) for number in range(len(job.prompts))]
        stops = _stops(job) if job.stop else []
        prediction = self._prediction(job) if job.prediction else ()
        seed = job.sampling.seed if job.sampling.seed is not None else random.getrandbits(32)
        sampling = job.sampling
        if sampling.logit_bias:
            sampling = replace(sampling, logit_bias=tuple(token_biases(sampling.logit_bias, self._vocabulary)))
        if sampling.thoughts is not None:
            sampling = replace(sampling, thoughts=self._with_ending(sampling.thoughts))
        scales = None if job.lora is None else self._adapters.scales(job.lora)
        place = _place(job.terms)
        is_shifted = self._shifts_context and _may_go_on(job)
        return [
            Task(
                tokens,
                max_tokens=-1 if job.max_tokens is None else min(job.max_tokens + len(job.begun), 2**31 - 1),
                sampling=sampling,
                seed=_seed_of(seed, answer),
                stops=stops,
                prediction=prediction,
                share_prefix=job.share_prefix,
                max_ms=job.max_ms,
                scores_prompt=job.scores_prompt,
                adapter_scales=scales,
                tells_progress=job.tells_progress,
                slot=job.slot,
                context_shift=is_shifted and not rows,
                n_keep=job.n_keep,
                n_discard=job.n_discard,
                rows=rows,
                generated=job.begun,
                sent_bytes=job.told_bytes,
                tells_state=job.tells_ids,
                **place,
            )
            for tokens, rows in prompts
            for answer in range(job.n)
        ]

    def _read(self, job: Job, number: int) -> tuple[Sequence[int], Sequence[Rows]]:
        """Returns a prompt's ids, with ROW_ID in place of each embedding row, and the rows."""
        prompt = job.prompts[number]
        tokens = self._vocabulary.encode(prompt, number, len(job.prompts))
        if not isinstance(prompt, Pieces):
            return tokens, ()
        rows = tuple(piece for piece in prompt.pieces if isinstance(piece, Rows))
        if job.scores_prompt and rows:
            raise NotSupported("logprobs of a prompt: embedding rows have none, for they are no tokens", "logprobs")
        return tokens, rows

    def _prediction(self, job: Job) -> Sequence[int]:
        """Returns the tokens that the answers are expected to have, where that is of use."""
        if not self._guesses:
            return ()
        return self._vocabulary.encode_answer(job.prediction, "prediction")

    def _with_ending(self, budget: ThoughtBudget) -> ThoughtBudget:
        """Returns the budget with the tokens that end the thoughts; those of a client's words are no control tokens."""
        pieces = [Piece(budget.message, True), Piece(budget.closing + budget.rest, False)]
        return replace(budget, ending=tuple(self._vocabulary.tokens_of(pieces, False, "reasoning_budget_message")))


class TaskPlacer:
    """Gives tasks what only their engine knows: numbers, ids of embedding rows, scales as they are set. Any thread."""

    def __init__(self, adapters: Adapters, notes: TaskNotes) -> None:
        self._adapters = adapters
        self._notes = notes
        self._row_ids = RowIds()

    def place(self, tasks: Sequence[Task], caller: str, is_streamed: bool) -> list[Task]:
        """Returns the tasks of one job of this caller, ready for the engine."""
        if not tasks:
            return []
        first = tasks[0]
        note = TaskNote.of_task(first, caller, is_streamed) if first.kind is TaskKind.GENERATE else None
        set_scales = self._adapters.set_scales
        read: dict[int, tuple[Sequence[int], bool]] = {}  # by the prompt, which several answers have
        placed = []
        for task in tasks:
            tokens, has_ids = task.tokens, True
            if task.rows:
                if id(tokens) not in read:
                    read[id(tokens)] = self._with_row_ids(task, caller)
                tokens, has_ids = read[id(tokens)]
            scales = set_scales if task.adapter_scales is None else task.adapter_scales
            placed.append(
                msgspec.structs.replace(
                    task,
                    tokens=tokens,
                    share_prefix=task.share_prefix and has_ids,
                    adapter_scales=scales,
                    id=self._notes.number(note),
                )
            )
        return placed

    def _with_row_ids(self, task: Task, caller: str) -> tuple[Sequence[int], bool]:
        """Returns the prompt with the ids of its rows, and whether all have one."""
        tokens, at, has_ids = list(task.tokens), 0, True
        for rows in task.rows:
            at = tokens.index(ROW_ID, at)
            row_id = self._row_ids.of_rows(rows, caller)
            if row_id is None:
                has_ids = False
            else:
                tokens[at : at + rows.n] = [row_id] * rows.n
            at += rows.n
        return tokens, has_ids


def _stops(job: Job) -> list[bytes]:
    stops = [stop.encode() for stop in job.stop]
    if any(len(stop) > MAX_STOP_BYTES for stop in stops):
        raise Refused(f"a stop string has at most {MAX_STOP_BYTES} bytes", "stop")
    return stops


def _may_go_on(job: Job) -> bool:
    """Returns whether an answer may outgrow its context: one sent whole without a limit would never be sent."""
    return job.stream or job.max_tokens is not None or job.max_ms > 0


def _place(terms: Terms) -> dict[str, Any]:
    """Returns the members of a task that decide its place in the queue."""
    return {
        "owner": owner_of(terms.owner or terms.caller),
        "priority": terms.priority,
        "deadline": terms.deadline or 0.0,
        "tier": terms.tier,
        "weight": terms.weight,
    }


def owner_of(caller: str) -> int:
    """Returns a number for a caller: prefixes are shared within it, and places in the queue are counted for it."""
    return int.from_bytes(hashlib.sha256(caller.encode()).digest()[:8], "little") if caller else 0


def _seed_of(seed: int, answer: int) -> int:
    """Mixes a job's seed with the number of the answer, the first of which has the job's own.

    Sums would not do: the second answer for seed 5 would be the first for seed 6.
    """
    if answer == 0:
        return seed
    digest = hashlib.blake2b(struct.pack("<II", seed, answer), digest_size=4)
    return int.from_bytes(digest.digest(), "little")
