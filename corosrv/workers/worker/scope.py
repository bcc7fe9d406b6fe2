"""The scope of user code: the prediction that the current context belongs to, and the metrics that it records."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from threading import RLock
from typing import Any

# Maps the modes that authors write to those on the wire.
MODES = {"replace": "replace", "incr": "increment", "increment": "increment", "append": "append"}
MAX_NAME = 128
MAX_SEGMENTS = 4
_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "bool"),
    ((int, float), "number"),
    (str, "str"),
    (list, "list"),
    (dict, "dict"),
)


class Metrics:
    """Checks what user code records, and passes it on. Any thread.

    `send(name, value, mode)` is called for each change, in order. None: outside predictions, where nothing is checked.
    """

    def __init__(self, send: Callable[[str, Any, str], None] | None) -> None:
        self._send = send
        self._kinds: dict[str, str] = {}  # of the names that have a value now
        self._lock = RLock()  # a destructor may record while this thread does

    def record(self, name: str, value: Any, mode: str = "replace") -> None:
        """Records a value. `mode`: replace; incr, of a number; append, to a list. None deletes. Dots in a name nest.

        Raises TypeError and ValueError: for a name or value that cannot be a metric, for a value of another type than
        the name has, for a name that is another's parent.
        """
        if self._send is None:
            return
        if mode is None:
            mode = "replace"
        if mode not in MODES:
            raise ValueError(f"a metric's mode is replace, incr or append, not {mode!r}")
        check_name(name)
        with self._lock:
            if value is None:
                self._delete(name)
                return
            kind = self._kind(name, value, MODES[mode])
            self._send(name, value, MODES[mode])
            self._kinds[name] = kind

    def delete(self, name: str) -> None:
        """Deletes a metric; does nothing if it was never recorded."""
        self.record(name, None)

    def __setitem__(self, name: str, value: Any) -> None:
        self.record(name, value)

    def __delitem__(self, name: str) -> None:
        self.record(name, None)

    def _delete(self, name: str) -> None:
        if self._send is not None and self._kinds.pop(name, None) is not None:
            self._send(name, None, "replace")

    def _kind(self, name: str, value: Any, mode: str) -> str:
        """Returns the kind of the name's value after this change. Raises TypeError or ValueError if it is refused."""
        kind = kind_of(name, value)
        if mode == "increment" and kind != "number":
            raise TypeError(f"metric {name!r}: incr needs a number, not {type(value).__name__}")
        if mode == "append":
            kind = "list"
        current = self._kinds.get(name)
        if current is None:
            self._check_family(name)
        elif current != kind:
            raise TypeError(f"metric {name!r} is a {current}: delete it before it becomes a {kind}")
        return kind

    def _check_family(self, name: str) -> None:
        for other in self._kinds:
            if other.startswith(f"{name}.") or name.startswith(f"{other}."):
                parent, child = sorted((name, other), key=len)
                raise ValueError(f"metric {parent!r} cannot hold a value and be the parent of {child!r}")


def check_name(name: str) -> None:
    """Raises TypeError or ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a metric's name is a string, not {type(name).__name__}")
    if (fault := _fault(name)) is not None:
        raise ValueError(f"{name!r:.150} is no name for a metric: it {fault}")
    if name == "predict_time" or name.startswith("cog."):
        raise ValueError(f"the metric {name!r} is reserved")


def _fault(name: str) -> str | None:
    """Returns the first rule that the name breaks, or None."""
    segments = name.split(".")
    if all(map(_SEGMENT.fullmatch, segments)) and len(name) <= MAX_NAME and len(segments) <= MAX_SEGMENTS:
        return None
    faults = {
        f"must have at most {MAX_NAME} characters": len(name) > MAX_NAME,
        "must not start with a dot": name.startswith("."),
        "must not end with a dot": name.endswith("."),
        "must not have empty segments": "" in segments,
        f"must have at most {MAX_SEGMENTS} dot-separated segments": len(segments) > MAX_SEGMENTS,
        "must not contain consecutive underscores": "__" in name,
        "must end with a letter or digit, as each segment": any(segment.endswith("_") for segment in segments),
        "must start with a letter, as each segment": not all(re.match("[A-Za-z]", segment) for segment in segments),
    }
    return next((fault for fault, is_so in faults.items() if is_so), "must consist of letters, digits, _ and dots")


def kind_of(name: str, value: Any) -> str:
    """Returns the value's type, as JSON has types. Raises TypeError or ValueError if it cannot be a metric."""
    kind = next((kind for types, kind in _KINDS if isinstance(value, types)), None)
    if kind is None:
        raise TypeError(f"metric {name!r} must be a bool, int, float, str, list or dict, not {type(value).__name__}")
    if isinstance(value, float) and value - value != 0:  # infinite or not a number
        raise ValueError(f"metric {name!r} must be finite, not {value}")
    return kind


class Scope:
    """One prediction's context and metrics. Outside predictions it is empty, and metrics are dropped."""

    def __init__(self, context: dict[str, str], metrics: Metrics) -> None:
        self.context = context
        self.metrics = metrics

    def record_metric(self, name: str, value: Any, mode: str = "replace") -> None:
        self.metrics.record(name, value, mode)


NOWHERE = Scope({}, Metrics(None))

# Tasks inherit it by themselves, threads by corosrv.workers.worker.capture.
scope: ContextVar[Scope] = ContextVar("corosrv_scope", default=NOWHERE)


def current_scope() -> Scope:
    """Returns the scope of the prediction that this call was made for; never None."""
    return scope.get()
