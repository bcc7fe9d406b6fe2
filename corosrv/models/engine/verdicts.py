"""Keeps verdicts about files of strangers, so that a trial is made once.

`identity` tells a model's files from any others, and from themselves after a change: by their places on the disk, and
by all that libllama reads before the weights.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
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


_BLOCK = 1_048_576  # bytes that are read at once
_LENGTH = struct.Struct("<Q")
_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value by its GGUF kind
_STRING, _ARRAY = 8, 9
_AFTER_EXTENTS = 12  # bytes of a tensor's kind and offset


def identity(path: str) -> str:
    """Returns a text that no other file has, and this one neither after any change; computes for tens of ms.

    It covers all parts of a model that is split. Raises OSError, and BrokenFile for files that are no GGUF.
    """
    return "\n".join(map(_identity, gguf.parts(path)))


def _identity(path: str) -> str:
    with open(path, "rb") as file:
        head = _head_hash(file)
        found = os.fstat(file.fileno())
    # The time of the last change, which nobody can set, tells of weights that were written in place.
    times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
    return f"{found.st_dev} {found.st_ino} {found.st_size} {times} {head}"


def _head_hash(file: BinaryIO) -> str:
    """Hashes a file up to the end of its list of tensors. Raises BrokenFile."""
    head = _HashedHead(file)
    if head.take(4) != b"GGUF":
        raise gguf.BrokenFile("no GGUF")
    head.take(4)  # the version
    n_tensors, n_pairs = head.number(), head.number()
    for _ in range(n_pairs):
        head.skip_texts(1)
        head.skip_value(head.kind())
    for _ in range(n_tensors):
        head.skip_texts(1)
        head.skip(head.kind() * _LENGTH.size + _AFTER_EXTENTS)
    return head.hexdigest()


class _HashedHead:
    """Reads a file from its beginning, and hashes all that it passes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._data = b""  # read, and not hashed yet
        self._at = 0  # of the data

    def hexdigest(self) -> str:
        self._hash.update(self._data[: self._at])
        return self._hash.hexdigest()

    def take(self, size: int) -> bytes:
        begin = self._at
        if begin + size > len(self._data):
            self._read_on()
            begin = 0
        self._at = begin + size
        taken = self._data[begin : self._at]
        if len(taken) < size:
            raise gguf.BrokenFile("the file ends within its head")
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def kind(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def skip(self, size: int) -> None:
        self._at += size
        if self._at > len(self._data):
            self._read_on()

    def skip_value(self, kind: int) -> None:
        if kind == _ARRAY:
            kind, count = self.kind(), self.number()
        else:
            count = 1
        if kind == _STRING:
            self.skip_texts(count)
        elif kind in _FIXED:
            self.skip(count * _FIXED[kind])
        else:
            raise gguf.BrokenFile(f"a value of the unknown kind {kind}")

    def skip_texts(self, count: int) -> None:
        """Skips texts, of which a vocabulary has hundreds of thousands."""
        while count:
            data, at, last = self._data, self._at, len(self._data) - _LENGTH.size
            while count and at <= last:
                at += _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
                count -= 1
            self._at = at
            if count or at > len(data):
                self._read_on()
            if count and len(self._data) < _LENGTH.size:
                raise gguf.BrokenFile("the file ends within its head")

    def _read_on(self) -> None:
        """Hashes the data up to the place where the reading is, and reads a block from there on."""
        while self._at > len(self._data):
            self._hash.update(self._data)
            self._at -= len(self._data)
            self._data = self._file.read(_BLOCK)
            if not self._data:
                raise gguf.BrokenFile("the file ends within its head")
        self._hash.update(self._data[: self._at])
        self._data, self._at = self._data[self._at :] + self._file.read(_BLOCK), 0
