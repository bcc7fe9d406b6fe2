"""Tasks as the C API takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from corosrv.base.processor import Turns
from corosrv.contracts.jobs import SAMPLERS, Rows, Sampling, ThoughtBudget
from corosrv.models.engine.binding.library import ffi, lib
from corosrv.models.engine.binding.values import Task

# What jobs.SAMPLERS names, as corosrv_sampler numbers it.
_SAMPLERS = dict(
    zip(
        SAMPLERS,
        (
            lib.COROSRV_SAMPLER_PENALTIES, lib.COROSRV_SAMPLER_DRY, lib.COROSRV_SAMPLER_TOP_N_SIGMA,
            lib.COROSRV_SAMPLER_TOP_K, lib.COROSRV_SAMPLER_TYPICAL_P, lib.COROSRV_SAMPLER_TOP_P,
            lib.COROSRV_SAMPLER_MIN_P, lib.COROSRV_SAMPLER_XTC, lib.COROSRV_SAMPLER_TEMPERATURE,
            lib.COROSRV_SAMPLER_ADAPTIVE_P,
        ),
        strict=True,
    )
)  # fmt: skip
# Fields that are the same here and there; cffi refuses names that the C struct does not have.
_TASK = (
    "max_tokens", "share_prefix", "pools", "normalize", "max_ms", "scores_prompt", "owner", "id", "tells_progress",
    "priority", "tier", "weight", "deadline", "context_shift", "n_keep", "n_discard", "tells_state",
)  # fmt: skip
_task_values = attrgetter(*_TASK)
_TRANSLATED = (
    "seed",
    "logit_bias",
    "grammar",
    "grammar_param",
    "grammar_triggers",
    "dry_sequence_breakers",
    "samplers",
    "thoughts",
)
_SAMPLING = tuple(field.name for field in fields(Sampling) if field.name not in _TRANSLATED)
_BREAKERS = Sampling().dry_sequence_breakers
_LARGE = 1 << 20  # bytes of rows
_FEW = 64  # that are taken without anybody noticing
_MANY_TOKENS = 4096  # that were generated, and are followed


class _BorrowedTexts:
    """`array` is of corosrv_text; it, and the texts, live as long as this object."""

    __slots__ = ("_texts", "array")

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._texts = [(ffi.new("char[]", text), len(text)) for text in texts]
        self.array = ffi.new("corosrv_text[]", [{"data": data, "size": size} for data, size in self._texts])


class _BorrowedBudget:
    """`members` are those of a corosrv_sampling; they, and what they point to, live as long as this object."""

    __slots__ = ("_ending", "_texts", "members")

    def __init__(self, budget: ThoughtBudget) -> None:
        self._texts = _BorrowedTexts(text.encode() for text in (budget.opening, budget.closing))
        self._ending = ffi.new("int32_t[]", budget.ending)
        self.members = {
            "thought_tokens": min(budget.tokens, 2**31 - 1),
            "thought_opening": self._texts.array[0],
            "thought_closing": self._texts.array[1],
            "thought_ending": self._ending,
            "n_thought_ending": len(budget.ending),
        }


class _BorrowedSampling:
    """`struct` is a corosrv_sampling without its seed; it, and what it points to, lives as long as this object."""

    __slots__ = ("_biases", "_breakers", "_grammar", "_samplers", "_thoughts", "_triggers", "struct")

    def __init__(self, sampling: Sampling) -> None:
        self._biases = ffi.new("corosrv_bias[]", sampling.logit_bias)
        self._grammar = ffi.new("char[]", sampling.grammar.encode())
        self._triggers = _BorrowedTexts(text.encode() for text in sampling.grammar_triggers)
        self._breakers = _BorrowedTexts(text.encode() for text in sampling.dry_sequence_breakers)
        self._samplers = ffi.new("int32_t[]", [_SAMPLERS[name] for name in sampling.samplers])
        translated = {
            "biases": self._biases,
            "n_biases": len(sampling.logit_bias),
            "grammar": {"data": self._grammar, "size": len(self._grammar) - 1},  # without the NUL that cffi adds
            "grammar_triggers": self._triggers.array,
            "n_grammar_triggers": len(sampling.grammar_triggers),
            "dry_breakers": self._breakers.array,
            "n_dry_breakers": len(sampling.dry_sequence_breakers),
            "samplers": self._samplers,
            "n_samplers": len(sampling.samplers),
        }
        self._thoughts = None if sampling.thoughts is None else _BorrowedBudget(sampling.thoughts)
        if self._thoughts is not None:
            translated |= self._thoughts.members
        self.struct = ffi.new("corosrv_sampling *", {name: getattr(sampling, name) for name in _SAMPLING} | translated)


_kept_sampling = lru_cache(maxsize=64)(_BorrowedSampling)


def _borrow_sampling(sampling: Sampling) -> _BorrowedSampling:
    """Translates a sampling. Nearly all requests ask for one of a few, which are kept, if they hold no long text."""
    is_small = not (sampling.grammar or sampling.grammar_triggers or sampling.logit_bias)
    if is_small and sampling.dry_sequence_breakers == _BREAKERS:
        return _kept_sampling(sampling)
    return _BorrowedSampling(sampling)


class _BorrowedRows:
    """`numbers` are those of all rows; `segments`, of corosrv_row_segment, is empty where all are read as tokens are.

    Both live as long as this object, and as the rows.
    """

    __slots__ = ("_positions", "numbers", "segments")

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.numbers = ffi.from_buffer("float[]", rows[0].data if len(rows) == 1 else b"".join(r.data for r in rows))
        are_plain = all(part.is_read_as_tokens for part in rows)
        self._positions = [] if are_plain else [ffi.from_buffer("int32_t[]", part.positions) for part in rows]
        self.segments = ffi.new("corosrv_row_segment[]", len(self._positions))
        for segment, part, positions in zip(self.segments, rows, self._positions, strict=False):
            segment.n_rows, segment.is_non_causal = part.n, part.is_non_causal
            if part.positions:
                segment.n_positions, segment.positions = part.n_positions, positions


def _borrow_state(state: bytes) -> Any:
    return ffi.from_buffer("uint8_t[]", state)


class BorrowedTasks:
    """`structs` is a corosrv_task for each; it, and what it points to, lives as long as this object.

    What several tasks have is made once. Lets other greenlets run where there is much to make.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._made: dict[tuple[str, int], Any] = {}
        self._of: list[Any] = []  # kept, so that no other object gets the same id
        self.structs = ffi.new("corosrv_task[]", len(tasks))
        turns = Turns()
        for number, task in enumerate(tasks):
            self.structs[number] = dict(zip(_TASK, _task_values(task), strict=True))
            self._fill(self.structs[number], task)
            turns.give_way()

    def _fill(self, struct: Any, task: Task) -> None:
        struct.tokens = self._array("int32_t[]", task.tokens)
        struct.n_tokens = len(task.tokens)
        if task.stops:
            struct.stops, struct.n_stops = self._once("stops", task.stops, _BorrowedTexts).array, len(task.stops)
        struct.kind = task.kind.value
        struct.slot = task.slot + 1
        if task.adapter_scales:
            struct.adapter_scales = self._array("float[]", task.adapter_scales)
        if task.prediction:
            struct.prediction, struct.n_prediction = self._array("int32_t[]", task.prediction), len(task.prediction)
        if task.generated:
            struct.generated, struct.n_generated = self._array("int32_t[]", task.generated), len(task.generated)
        if task.state:
            struct.state, struct.n_state = self._once("state", task.state, _borrow_state), len(task.state)
        struct.n_sent_bytes = task.sent_bytes
        if task.rows:
            rows = self._once("rows", task.rows, _BorrowedRows)
            struct.rows, struct.n_rows = rows.numbers, sum(part.n for part in task.rows)
            if len(rows.segments):
                struct.row_segments, struct.n_row_segments = rows.segments, len(rows.segments)
        struct.sampling = self._once("sampling", task.sampling, _borrow_sampling).struct[0]
        struct.sampling.seed = task.seed

    def _array(self, c_type: str, value: Sequence[Any]) -> Any:
        return self._once(c_type, value, partial(ffi.new, c_type))

    def _once(self, kind: str, value: Any, make: Callable[[Any], Any]) -> Any:
        key = kind, id(value)
        if key not in self._made:
            self._of.append(value)
            self._made[key] = make(value)
        return self._made[key]


def take_long(tasks: Sequence[Task]) -> bool:
    """Returns whether submitting these tasks takes long: they are many, or one has much to check."""
    return len(tasks) > _FEW or any(map(_takes_long, tasks))


def _takes_long(task: Task) -> bool:
    """Returns whether many rows are checked, many tokens followed, a grammar compiled, or breakers looked up in the
    vocabulary.
    """
    sampling = task.sampling
    if len(task.generated) > _MANY_TOKENS:
        return True
    is_large = bool(task.rows) and sum(len(part.data) for part in task.rows) > _LARGE
    return is_large or bool(sampling.grammar or (sampling.dry_multiplier and sampling.dry_sequence_breakers))
