"""Metrics that a predictor recorded about one prediction, by name; dots in names make nested objects."""

from __future__ import annotations

from typing import Any


class RecordedMetrics:
    """Values in the order in which they were first recorded. The worker has checked names and types."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def record(self, name: str, value: Any, mode: str) -> None:
        """`mode`: replace, increment or append. None deletes the name, and all below it."""
        if value is None:
            self._delete(name)
        elif mode == "increment":
            self._values[name] = self._values.get(name, 0) + value
        elif mode == "append":
            self._append(name, value)
        else:
            # A list of our own: whoever was told of this one must not see it grow.
            self._values[name] = list(value) if isinstance(value, list) else value

    def _append(self, name: str, value: Any) -> None:
        held = self._values.get(name)
        if isinstance(held, list):
            held.append(value)
        else:
            self._values[name] = [value] if held is None else [held, value]

    def _delete(self, name: str) -> None:
        for known in [known for known in self._values if known == name or known.startswith(name + ".")]:
            del self._values[known]

    def nested(self) -> dict[str, Any]:
        """Returns the metrics as nested objects."""
        whole: dict[str, Any] = {}
        for name, value in self._values.items():
            *parents, last = name.split(".")
            place = whole
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        return whole
