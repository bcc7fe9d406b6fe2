"""Files among a prediction's outputs: copied at once, since an author may write the next one over it."""

from __future__ import annotations

import errno
import mimetypes
import os
import stat
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

from corosrv.base.errors import OutputFailed
from corosrv.workers.worker.values.file_names import file_name
from corosrv.workers.worker.values.private import make_private

_PIECE = 1 << 20  # bytes


class OutputFiles:
    """The directory of a prediction's output files, as one of its chunks uses it. No two of its files share a name."""

    def __init__(self, directory: str, index: int) -> None:
        self._directory = directory
        self._index = index

    def keep(self, file: Any) -> tuple[str, str]:
        """Copies a path's or open file's content; returns the copy's name and MIME type. Raises OutputFailed."""
        name = _name_of(file)
        mime_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        try:
            with self._create(name) as target:
                for piece in _pieces(file):
                    target.write(piece)
                return os.path.basename(target.name), mime_type
        except ValueError as error:  # as of one that is closed
            raise OutputFailed(f"the output file {name} cannot be read: {error}") from error
        except OSError as error:
            raise OutputFailed(f"the output file {name} cannot be read: {error.strerror}") from error

    def write(self, name: str, content: bytes) -> str:
        """Writes a file and returns the name that it got. Raises OutputFailed."""
        try:
            with self._create(name) as target:
                target.write(content)
                return os.path.basename(target.name)
        except OSError as error:
            raise OutputFailed(f"an output cannot be written: {error.strerror}") from error

    def _create(self, name: str) -> BinaryIO:
        make_private(self._directory)
        stem, ending = os.path.splitext(name)
        number = self._index
        while True:
            try:
                return open(os.path.join(self._directory, name), "xb")
            except FileExistsError:
                name = f"{stem}-{number}{ending}"
                number += 1


def _name_of(file: Any) -> str:
    name = os.fspath(file) if isinstance(file, os.PathLike) else getattr(file, "name", None)
    return file_name(os.fsdecode(name).rpartition("/")[2]) if isinstance(name, str | bytes) else "output"


def _pieces(file: Any) -> Iterator[bytes]:
    """The whole content, also of a file that was read or written to before."""
    if isinstance(file, os.PathLike):
        with _regular(file) as opened:
            yield from iter(partial(opened.read, _PIECE), b"")
        return
    if callable(is_seekable := getattr(file, "seekable", None)) and is_seekable():
        file.seek(0)
    source = getattr(file, "buffer", file)  # the bytes below a text
    while piece := source.read(_PIECE):
        yield piece.encode() if isinstance(piece, str) else piece


def _regular(path: os.PathLike[str]) -> BinaryIO:
    """Opened without waiting for the other end of what turns out to be no plain file: it might have none, or no end."""
    opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return opened
