"""Keeps verdicts about files of strangers, so that a trial is made once."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

log = logging.getLogger("corosrv.engine")

MAX_VERDICTS = 256  # in one file

T = TypeVar("T")


class StoredVerdicts:
    """A small JSON file in the user's cache: verdicts by a hash of what they depend on. Losing it costs trials."""

    def __init__(self, name: str) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._file = cache / "corosrv" / name

    def get(self, key: str | None, kind: type[T]) -> T | None:
        """Returns the verdict with this key; None where there is none of this kind."""
        try:
            return None if key is None else msgspec.convert(self._read().get(key), kind)
        except msgspec.ValidationError:
            return None

    def store(self, key: str | None, verdict: Any) -> None:
        """Adds a verdict, and drops the oldest beyond a few. Logs what keeps it from that."""
        if key is None:
            return
        verdicts = self._read()
        verdicts.pop(key, None)
        for oldest in [*verdicts][: max(0, len(verdicts) - MAX_VERDICTS + 1)]:
            del verdicts[oldest]
        verdicts[key] = verdict
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial = self._file.with_suffix(f".{os.getpid()}")
            partial.write_bytes(msgspec.json.encode(verdicts))
            partial.replace(self._file)
        except OSError as error:
            log.info("a verdict is not remembered: %s", error)

    def _read(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Any])
        except (OSError, ValueError):
            return {}
