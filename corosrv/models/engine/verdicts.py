"""Keeps verdicts about files of strangers, so that a trial is made once.

`identity` tells a model's files from any others, and from themselves after a change: by their places on the disk, and
by all that libllama reads before the weights.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from corosrv.models.fitting import gguf

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
            log.info("the result of a trial cannot be stored, so that it is made again later: %s", error)

    def _read(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Any])
        except (OSError, ValueError):
            return {}


_BLOCK = 1_048_576  # bytes that are hashed at once
_EXTENT = 8  # bytes
_AFTER_EXTENTS = 12  # bytes of a tensor's kind and offset


def identity(path: str) -> str:
    """Returns a text that no other file has, and this one neither after any change; computes for tens of ms.

    It covers all parts of a model that is split. Raises OSError, and BrokenFile for files that are no GGUF.
    """
    return "\n".join(map(_identity, gguf.parts(path)))


def _identity(path: str) -> str:
    head = hashlib.sha256()
    with open(path, "rb") as file:
        size = _head_size(file)
        file.seek(0)
        while size > 0 and (block := file.read(min(size, _BLOCK))):
            head.update(block)
            size -= len(block)
        found = os.fstat(file.fileno())
    # The time of the last change, which nobody can set, tells of weights that were written in place.
    times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
    return f"{found.st_dev} {found.st_ino} {found.st_size} {times} {head.hexdigest()}"


def _head_size(file: BinaryIO) -> int:
    """Returns the bytes of a file up to the end of its list of tensors. Raises BrokenFile."""
    head = gguf.GgufReader(file)
    n_tensors, n_pairs = head.begin()
    for _ in range(n_pairs):
        head.skip_texts(1)
        head.skip_value(*head.unpack("I"))
    for _ in range(n_tensors):
        head.skip_texts(1)
        (n_extents,) = head.unpack("I")
        head.skip(n_extents * _EXTENT + _AFTER_EXTENTS)
    head.take(0)  # raises for a file that ends before
    return head.place
