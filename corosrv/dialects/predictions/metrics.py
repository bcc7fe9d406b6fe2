"""Metrics that a predictor recorded about one prediction, by name; dots in names make nested objects."""

from __future__ import annotations

from typing import Any


class RecordedMetrics:
    """Values in the order in which they were first recorded. The worker has checked names and types."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def record(self, name: str, value: Any, mode: str) -> None:
        """Records a value; `mode`: replace, increment or append. None deletes the name and all names below it."""
        if value is None:
            self._delete(name)
        elif mode == "increment":
            self._values[name] = self._values.get(name, 0) + value
        elif mode == "append":
            self._append(name, value)
        else:
            # A copy: those who got this list must not see it grow.
            self._values[name] = list(value) if isinstance(value, list) else value

    def _append(self, name: str, value: Any) -> None:
        current = self._values.get(name)
        if isinstance(current, list):
            current.append(value)
        else:
            self._values[name] = [value] if current is None else [current, value]

    def _delete(self, name: str) -> None:
        for key in [key for key in self._values if key == name or key.startswith(name + ".")]:
            del self._values[key]

    def nested(self) -> dict[str, Any]:
        """Returns the metrics as nested objects."""
        tree: dict[str, Any] = {}
        for name, value in self._values.items():
            *parents, last = name.split(".")
            branch = tree
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[last] = value
        return tree
