"""Makes the decode loop's tasks of jobs: prompts become tokens, and samplers, grammars and adapters are looked up.

Embedding rows get private ids: equal ids stand for equal rows, so that prefixes are compared by ids alone.
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

    def list(self) -> tuple[Adapter, ...]:
        return self._adapters

    def set(self, scales: Mapping[int, float]) -> None:
        """Sets the scales for jobs that name no adapters; adapters not listed are off. Raises Refused."""
        checked = self._checked(scales)
        self._adapters = tuple(replace(adapter, scale=checked.get(adapter.id, 0.0)) for adapter in self._adapters)

    def scales(self, named_scales: Iterable[tuple[int, float]] | None) -> tuple[float, ...]:
        """Returns a job's scale for each adapter: those that it names, or the set ones. Raises Refused."""
        if named_scales is None:
            return tuple(adapter.scale for adapter in self._adapters)
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
        notes: TaskNotes,
        slots: int,
        shifts_context: bool = False,
        guesses: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._adapters = adapters
        self._notes = notes
        self._slots = slots
        self._shifts_context = shifts_context
        self._guesses = guesses
        self._row_ids = RowIds()

    def make(self, job: AnyJob) -> list[Task]:
        """Makes a task for each answer."""
        if isinstance(job, RerankJob):
            return self._scores(job)
        if isinstance(job, EmbedJob):
            return self._vectors(job)
        return self._generations(job)

    def _scores(self, job: RerankJob) -> list[Task]:
        prompts = self._vocabulary.encode_pairs(job.query, job.documents)
        scales = self._adapters.scales(None)
        place = _place(job.terms)
        return [
            Task(tokens, kind=TaskKind.RANK, adapter_scales=scales, id=self._notes.number(), **place)
            for tokens in prompts
        ]

    def _vectors(self, job: EmbedJob) -> list[Task]:
        if any(isinstance(prompt, Pieces) for prompt in job.prompts):
            raise NotSupported("input: embedding rows cannot be embedded", "input")
        prompts = self._vocabulary.encode_inputs(job.prompts)
        scales, place = self._adapters.scales(None), _place(job.terms)
        return [
            Task(
                tokens,
                kind=TaskKind.EMBED,
                pools=job.pooling,
                normalize=job.normalize,
                adapter_scales=scales,
                id=self._notes.number(),
                **place,
            )
            for tokens in prompts
        ]

    def _generations(self, job: Job) -> list[Task]:
        self._check(job)
        prompts = [self._read(job, number) for number in range(len(job.prompts))]
        stops = _stops(job)
        prediction = self._prediction(job)
        seed = job.sampling.seed if job.sampling.seed is not None else random.getrandbits(32)
        sampling = job.sampling
        if sampling.logit_bias:
            sampling = replace(sampling, logit_bias=tuple(token_biases(sampling.logit_bias, self._vocabulary)))
        if sampling.thoughts is not None:
            sampling = replace(sampling, thoughts=self._with_ending(sampling.thoughts))
        scales = self._adapters.scales(job.lora)
        note, place = TaskNote.of_job(job), _place(job.terms)
        is_shifted = self._shifts_context and _may_go_on(job)
        return [
            Task(
                tokens,
                max_tokens=-1 if job.max_tokens is None else min(job.max_tokens, 2**31 - 1),
                sampling=sampling,
                seed=_seed_of(seed, answer),
                stops=stops,
                prediction=prediction,
                share_prefix=shares_prefix,
                max_ms=job.max_ms,
                scores_prompt=job.scores_prompt,
                adapter_scales=scales,
                tells_progress=job.tells_progress,
                id=self._notes.number(note),
                slot=job.slot,
                context_shift=is_shifted and not rows,
                n_keep=job.n_keep,
                n_discard=job.n_discard,
                rows=rows,
                **place,
            )
            for tokens, rows, shares_prefix in prompts
            for answer in range(job.n)
        ]

    def _read(self, job: Job, number: int) -> tuple[Sequence[int], Sequence[Rows], bool]:
        """Returns a prompt's ids, its embedding rows, and whether it may share what is computed."""
        prompt = job.prompts[number]
        tokens = self._vocabulary.encode(prompt, number, len(job.prompts))
        if not isinstance(prompt, Pieces):
            return tokens, (), job.share_prefix
        rows = tuple(piece for piece in prompt.pieces if isinstance(piece, Rows))
        if job.scores_prompt and rows:
            raise NotSupported("logprobs of a prompt: embedding rows have none, for they are no tokens", "logprobs")
        ids: list[int] = []
        has_ids = True
        for piece in prompt.pieces:
            if isinstance(piece, Rows):
                row_id = self._row_ids.of_rows(piece, job.terms.caller)
                has_ids = has_ids and row_id is not None
                ids += [ROW_ID if row_id is None else row_id] * piece.n
            else:
                ids += piece.ids
        return ids or tokens, rows, job.share_prefix and has_ids

    def _prediction(self, job: Job) -> Sequence[int]:
        """Returns the tokens that the answers are expected to have, where that is of use."""
        if not self._guesses or not job.prediction:
            return ()
        return self._vocabulary.encode_answer(job.prediction, "prediction")

    def _check(self, job: Job) -> None:
        if not -1 <= job.slot < self._slots:
            there_are = f"they are numbered from 0 to {self._slots - 1}"
            raise Refused(f"id_slot: there is no slot {job.slot}: {there_are}", "id_slot")

    def _with_ending(self, budget: ThoughtBudget) -> ThoughtBudget:
        """Returns the budget with the tokens that end the thoughts; those of a client's words are no control tokens."""
        pieces = [Piece(budget.message, True), Piece(budget.closing + budget.rest, False)]
        return replace(budget, ending=tuple(self._vocabulary.tokens_of(pieces, False, "reasoning_budget_message")))


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
    return {"owner": owner_of(terms.caller), "priority": terms.priority, "deadline": terms.deadline or 0.0}


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
