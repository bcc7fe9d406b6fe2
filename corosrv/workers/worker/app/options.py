"""Defines the options of handlers, their defaults and their checks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from corosrv.base.errors import AppError
from corosrv.contracts.jobs.infer import BatchLimits, HandlerCard, Scalar
from corosrv.contracts.jobs.terms import DEFAULT_PRIORITY, FIRST_PRIORITY, LAST_PRIORITY
from corosrv.formats.tensors import TensorSpec
from corosrv.workers.worker.app.pools import HandlerSignature
from corosrv.workers.worker.app.typed_signature import HandlerKind, TypedSignature

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UNARY = ("join", "last", "refuse")
_JOINED = "text_output"  # the output whose pieces a unary call gets as one


@dataclass(frozen=True, kw_only=True)
class HandlerOptions:
    """Holds the options of one registration, as `@app.model` explains them."""

    version: str | None = None
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    platform: str = "corosrv-python"
    concurrency: int = 1
    max_queue: int = 64
    slo_ms: float = 60_000.0
    timeout_ms: float | None = None
    idempotent: bool = False
    batch: Mapping[str, float] | None = None
    unary: str | None = None
    default: bool = False
    priority: int = DEFAULT_PRIORITY
    admission: str | None = None

    def card(self, name: str, signature: HandlerSignature, capability: dict[str, Scalar] | None = None) -> HandlerCard:
        """Returns the card of a handler of this name. Raises AppError for an option that it cannot have."""
        if self.version is not None:
            check_name(f"{name}: `version`", self.version)
        for option, rule in _RULES.items():
            _check(name, option, getattr(self, option), rule)
        for option, specs in (("inputs", self.inputs), ("outputs", self.outputs)):
            if len(specs) > len({spec.name for spec in specs}):
                raise AppError(f"{name}: `{option}` declares a name twice")
        options = self if signature.typed is None else self._with_types(name, signature.typed)
        return options._card(name, signature.kind, capability)

    def _with_types(self, name: str, typed: TypedSignature) -> HandlerOptions:
        """Returns the options of a handler whose types declare its tensors. Raises AppError if options do so, too."""
        if self.inputs or self.outputs:
            raise AppError(f"{name}: its types say what it takes and returns: leave out `inputs` and `outputs`")
        if self.batch is not None:
            raise AppError(
                f"{name}: a batch is a list of requests: write the handler as (requests) or leave out `batch`"
            )
        return replace(self, inputs=typed.inputs(), outputs=typed.outputs())

    def _card(self, name: str, kind: HandlerKind, capability: dict[str, Scalar] | None) -> HandlerCard:
        if capability is not None and (self.version is not None or self.default):
            raise AppError(f"{name}: a capability has no version: leave out `version` and `default`")
        if self.default and self.version is None:
            raise AppError(f"{name}: only a version can be the default: give it a `version`")
        return HandlerCard(
            name,
            version=self.version or "",
            capability=capability,
            is_default=self.default,
            platform=self.platform,
            inputs=list(self.inputs),
            outputs=list(self.outputs),
            is_stream=kind.is_stream,
            unary=self._unary(name, kind),
            concurrency=self.concurrency,
            max_queue=self.max_queue,
            slo_ms=float(self.slo_ms),
            timeout_ms=None if self.timeout_ms is None else float(self.timeout_ms),
            is_idempotent=self.idempotent,
            batch=self._batch(name, kind),
            priority=self.priority,
            admission="predict" if self.admission is None else self.admission,
        )

    def _unary(self, name: str, kind: HandlerKind) -> str:
        if self.unary is not None and not kind.is_stream:
            raise AppError(f"{name}: `unary` is for handlers that stream, and this is a {kind.value}")
        if self.unary == "join" and not self._has_text:
            raise AppError(f"{name}: unary='join' needs a declared BYTES output {_JOINED!r}")
        return self.unary or ("join" if kind.is_stream and self._has_text else "refuse")

    @property
    def _has_text(self) -> bool:
        return any(spec.name == _JOINED and spec.datatype == "BYTES" for spec in self.outputs)

    def _batch(self, name: str, kind: HandlerKind) -> BatchLimits | None:
        if self.batch is None:
            return None
        if kind.is_stream:
            raise AppError(f"{name} is a {kind.value}, which cannot take batches: leave out `batch`, or return a list")
        unknown = set(self.batch) - {"max_size", "max_delay_ms"}
        if unknown:
            raise AppError(f"{name}: `batch` has no member {min(unknown)!r}: it has max_size and max_delay_ms")
        _check(name, "batch['max_size']", self.batch.get("max_size"), _COUNT)
        _check(name, "batch['max_delay_ms']", self.batch.get("max_delay_ms", 0.0), _TIME)
        return BatchLimits(int(self.batch["max_size"]), float(self.batch.get("max_delay_ms", 0.0)))


OPTION_NAMES = frozenset(option.name for option in fields(HandlerOptions))


def check_name(subject: str, value: Any) -> None:
    """Raises AppError unless a model may have this name, or a version."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise AppError(f"{subject}: {value!r} is no name: letters, digits, `.`, `_` and `-`, at most 128 of them")


def check_capability(subject: str, attributes: Mapping[str, Any]) -> dict[str, Scalar]:
    """Returns the attributes of a capability. Raises AppError for a value that is no string, number or boolean."""
    if not attributes:
        raise AppError(f"{subject}: a capability needs attributes, as type='embed'")
    for key, value in attributes.items():
        if not isinstance(key, str) or not isinstance(value, (str, bool, int, float)):
            raise AppError(f"{subject}: the attribute {key!r} is {value!r}: it may be a string, a number or a boolean")
        if isinstance(value, float) and not math.isfinite(value):
            raise AppError(f"{subject}: the attribute {key!r} is {value!r}, which is no finite number")
    return dict(attributes)


def _is_integer(value: Any, least: int, most: float = math.inf) -> bool:
    return not isinstance(value, bool) and isinstance(value, int) and least <= value <= most


def _is_time(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < math.inf


def _are_specs(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(spec, TensorSpec) for spec in value)


# What tells whether a value is allowed, and what it must be.
Rule = tuple[Callable[[Any], bool], str]

_COUNT: Rule = (lambda value: _is_integer(value, 1), "an integer of at least 1")
_TIME: Rule = (_is_time, "a number of milliseconds")
_FLAG: Rule = (lambda value: isinstance(value, bool), "True or False")
_SPECS: Rule = (_are_specs, "a list of TensorSpec")
_RULES: dict[str, Rule] = {
    "inputs": _SPECS,
    "outputs": _SPECS,
    "platform": (lambda value: isinstance(value, str) and bool(value), "a text"),
    "concurrency": _COUNT,
    "max_queue": _COUNT,
    "slo_ms": _TIME,
    "timeout_ms": (lambda value: value is None or _is_time(value), _TIME[1]),
    "idempotent": _FLAG,
    "batch": (lambda value: value is None or isinstance(value, Mapping), "as {'max_size': 8, 'max_delay_ms': 2}"),
    "unary": (lambda value: value is None or value in _UNARY, f"one of {', '.join(_UNARY)}"),
    "default": _FLAG,
    "priority": (
        lambda value: _is_integer(value, FIRST_PRIORITY, LAST_PRIORITY),
        f"from {FIRST_PRIORITY} (first) to {LAST_PRIORITY}",
    ),
    "admission": (
        lambda value: value in (None, "predict", "queue"),
        "'predict' or None, or 'queue' to let all wait",
    ),
}


def _check(name: str, option: str, value: Any, rule: Rule) -> None:
    is_allowed, words = rule
    if not is_allowed(value):
        raise AppError(f"{name}: `{option}` must be {words}, not {value!r:.80}")


def same_capability(one_map: Mapping[str, Scalar], other_map: Mapping[str, Scalar]) -> bool:
    """Returns whether two capabilities are equal; True is no number."""
    return _typed(one_map) == _typed(other_map)


def _typed(attributes: Mapping[str, Scalar]) -> frozenset[tuple[str, bool, Scalar]]:
    return frozenset((key, isinstance(value, bool), value) for key, value in attributes.items())


def describe_capability(attributes: Mapping[str, Scalar]) -> str:
    return msgspec.json.encode(attributes, order="sorted").decode()
