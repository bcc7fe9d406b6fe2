"""Downloads one file: goes on where the last try ended, compares the checksum, and only then gives it its name."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from corosrv.base.errors import HubError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIECE = 1 << 20  # bytes hashed at once
_PAUSE = 0.5  # seconds between two looks at whether another process has finished the same file

# Gets the bytes of a file, from an offset to its end: `transfer(file, offset)`.
Transfer = Callable[["HashedFile", int], None]
Report = Callable[[int], None]  # gets the bytes of the file that are there


@dataclass(frozen=True, slots=True)
class BlobSource:
    """Says what a file must become: its ETag, which is its SHA-256 where the hub keeps it apart, and its bytes."""

    path: str
    etag: str
    size: int | None


class HashedFile(FileIO):
    """A file that is written from its beginning on, and hashed meanwhile."""

    def __init__(self, path: Path, report: Report) -> None:
        """Opens what is there, or makes it; the position is its end once read_rest() was called."""
        super().__init__(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+")
        self._sha256 = hashlib.sha256()
        self._report = report

    def read_rest(self) -> int:
        """Hashes what is there already; returns its bytes."""
        while piece := self.read(_PIECE):
            self._sha256.update(piece)
            self._report(self.tell())
        return self.tell()

    def write(self, content: object) -> int:
        view = memoryview(content).cast("B")  # type: ignore[arg-type]
        n_written = 0
        while n_written < len(view):
            n_written += super().write(view[n_written:])
        self._sha256.update(view)
        self._report(self.tell())
        return n_written

    def truncate(self, size: int | None = None) -> int:
        """Empties the file: a server that was asked for the rest of it sends all of it."""
        if (size if size is not None else self.tell()) != 0:
            raise HubError("a download can only be begun anew from its first byte")
        self._sha256 = hashlib.sha256()
        return super().truncate(0)

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()


def fetch(source: BlobSource, blob: Path, lock: Path, transfer: Transfer, report: Report) -> None:
    """Downloads a file to `blob`, unless it is there. Waits while another process does.

    What a try leaves behind is `blob`.incomplete, with which the next one goes on. Raises HubError for a wrong
    checksum, then nothing is left behind; and whatever `transfer` raises.
    """
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_name(blob.name + ".incomplete")
    with _locked(lock, lambda: report(_size(partial))):
        if blob.exists():
            return
        if source.size is not None and _size(partial) > source.size:
            partial.unlink()
        with HashedFile(partial, report) as file:
            transfer(file, file.read_rest())
            size, digest = file.tell(), file.digest
            os.fsync(file.fileno())
        _check(source, partial, size, digest)
        partial.replace(blob)


def _check(source: BlobSource, partial: Path, size: int, digest: str) -> None:
    """Raises HubError for content that is not what the hub promised, and removes it if more would not mend it."""
    if source.size is not None and size < source.size:
        raise HubError(
            f"the download of {source.path} ended after {size} of {source.size} bytes; the next try goes on there"
        )
    if (source.size is not None and size > source.size) or (_SHA256.fullmatch(source.etag) and digest != source.etag):
        partial.unlink()
        raise HubError(
            f"the checksum of {source.path} is wrong: its SHA-256 is {digest} and should be {source.etag}; "
            "it was removed, the next try downloads it again"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of a file, which the library's own downloads take as well. Waits for as long as others hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(fd):
            on_wait()
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
