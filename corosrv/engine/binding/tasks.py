"""Tasks as the C API takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from corosrv.engine.binding.library import ffi, lib
from corosrv.engine.binding.values import Task
from corosrv.jobs import SAMPLERS, Sampling
from corosrv.turns import Turns

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
_TASK = ("max_tokens", "share_prefix", "pools", "normalize", "max_ms", "scores_prompt", "owner", "id", "tells_progress")
_TRANSLATED = ("seed", "logit_bias", "grammar", "grammar_triggers", "dry_sequence_breakers", "samplers")
_SAMPLING = tuple(field.name for field in fields(Sampling) if field.name not in _TRANSLATED)
_FEW = 64  # that are taken without anybody noticing


class LentTasks:
    """`structs` is a corosrv_task for each; it, and what it points to, lives as long as this object.

    What several tasks have is made once. Lets other greenlets run where there is much to make.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._made: dict[tuple[str, int], Any] = {}
        self._of: list[Any] = []  # kept, so that no other object gets the same id
        self.structs = ffi.new("corosrv_task[]", len(tasks))
        turns = Turns()
        for number, task in enumerate(tasks):
            self.structs[number] = self._task(task)
            turns.give_way()

    def _task(self, task: Task) -> dict[str, Any]:
        return {name: getattr(task, name) for name in _TASK} | {
            "tokens": self._array("int32_t[]", task.tokens),
            "n_tokens": len(task.tokens),
            "stops": self._texts(task.stops),
            "n_stops": len(task.stops),
            "kind": task.kind.value,
            "slot": task.slot + 1,
            "adapter_scales": self._array("float[]", task.adapter_scales) if task.adapter_scales else ffi.NULL,
            "sampling": self._once("sampling", task.sampling, self._sampling) | {"seed": task.seed},
        }

    def _sampling(self, sampling: Sampling) -> dict[str, Any]:
        """All but the seed."""
        grammar = self._once("grammar", sampling.grammar, lambda text: ffi.new("char[]", text.encode()))
        return {name: getattr(sampling, name) for name in _SAMPLING} | {
            "biases": self._array("corosrv_bias[]", sampling.logit_bias),
            "n_biases": len(sampling.logit_bias),
            "grammar": {"data": grammar, "size": len(grammar) - 1},  # without the NUL that cffi adds
            "grammar_triggers": self._texts([text.encode() for text in sampling.grammar_triggers]),
            "n_grammar_triggers": len(sampling.grammar_triggers),
            "dry_breakers": self._texts([text.encode() for text in sampling.dry_sequence_breakers]),
            "n_dry_breakers": len(sampling.dry_sequence_breakers),
            "samplers": self._array("int32_t[]", [_SAMPLERS[name] for name in sampling.samplers]),
            "n_samplers": len(sampling.samplers),
        }

    def _array(self, c_type: str, value: Sequence[Any]) -> Any:
        return self._once(c_type, value, lambda value: ffi.new(c_type, value))

    def _texts(self, of: Sequence[bytes]) -> Any:
        return self._once("texts", of, self._new_texts)

    def _new_texts(self, of: Sequence[bytes]) -> Any:
        return ffi.new("corosrv_text[]", [{"data": self._array("char[]", text), "size": len(text)} for text in of])

    def _once(self, kind: str, value: Any, make: Callable[[Any], Any]) -> Any:
        key = kind, id(value)
        if key not in self._made:
            self._of.append(value)
            self._made[key] = make(value)
        return self._made[key]


def take_long(tasks: Sequence[Task]) -> bool:
    """Whether their submission does: they are many, or something has to be made of the whole vocabulary for one."""
    return len(tasks) > _FEW or any(map(_takes_long, tasks))


def _takes_long(task: Task) -> bool:
    """A grammar is compiled, or breakers are looked for in all of the vocabulary."""
    sampling = task.sampling
    return bool(sampling.grammar or (sampling.dry_multiplier and sampling.dry_sequence_breakers))
