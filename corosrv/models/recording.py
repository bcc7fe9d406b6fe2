"""The file that an engine records into: made, locked, and told apart from others by its head.

What stands behind the head is the native core's (native/src/recording/ring_file.h). The file holds what users wrote,
and so belongs to its user alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import struct
from pathlib import Path
from typing import Any

import msgspec

from corosrv.base import __version__
from corosrv.base.errors import ModelFailed

log = logging.getLogger("corosrv.engine")

_MAGIC = b"corosrv record\n\0"
_VERSION = 1
_FIXED = struct.Struct("<16sIII")  # magic, version, state, bytes of the head
_STATE = struct.Struct("<I")
_STATE_AT = 20
_OPEN, _CLOSED = 1, 2
_MOST_HEAD = 60 * 1024 - _FIXED.size
_KEPT = 4  # files of crashes beside one path
_BLOCKS, _BLOCK = 64, 65_536  # of a model's file, that its digest is made of


class RecordingHead(msgspec.Struct, frozen=True):
    """Describes what a recording was made with."""

    pid: int
    corosrv: str
    libllama: str
    processor: str
    model: str  # name
    digests: tuple[str, ...]  # of the model's file and of its adapters
    options: dict[str, Any]  # of the engine

    @classmethod
    def describing(cls, options: msgspec.Struct, name: str, libllama: str, processor: str) -> RecordingHead:
        """Describes an engine with these options, which may be recorded now. Reads some of the model's file."""
        words = msgspec.to_builtins(options)
        paths = [] if words["synthetic"] else [words["model"], *words["adapters"]]
        digests = tuple(map(digest_of, paths))
        return cls(os.getpid(), __version__, libllama, processor, name, digests, words)


def digest_of(path: str) -> str:
    """Hashes a file's size and 64 pieces of it, evenly spread: tells models apart in milliseconds."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        for block in range(_BLOCKS):
            file.seek(max(size - _BLOCK, 0) * block // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


class RecordFile:
    """A file that an engine records into, and its lock. `fd` is lent to the native core."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._trouble = ""

    def tell(self, trouble: str) -> None:
        """Logs once that nothing is recorded now, and why; and that something is again."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble:
            log.error("nothing is recorded into %s any more: %s", self.path, trouble)
        else:
            log.info("recording into %s again", self.path)

    def close(self) -> None:
        """Marks the file as whole: its engine did not crash. Twice is harmless."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        with contextlib.suppress(OSError):
            os.pwrite(fd, _STATE.pack(_CLOSED), _STATE_AT)
        os.close(fd)


def record_into(path: str, head: RecordingHead) -> RecordFile:
    """Makes the file anew, and locks it. Keeps one whose engine crashed, under another name.

    Raises ModelFailed where the path cannot be recorded into.
    """
    encoded = msgspec.json.encode(head)
    if len(encoded) > _MOST_HEAD:
        raise ModelFailed(
            f"COROSRV_RECORD: what describes the engine has {len(encoded)} bytes, of at most {_MOST_HEAD}"
        )
    try:
        if fault := _clear(path):
            raise ModelFailed(f"COROSRV_RECORD: {fault}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ModelFailed(f"COROSRV_RECORD: {path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        whole = _FIXED.pack(_MAGIC, _VERSION, _OPEN, len(encoded)) + encoded
        if os.pwrite(fd, whole, 0) < len(whole):
            raise OSError(None, "no space is left")
    except OSError as error:
        os.close(fd)
        raise ModelFailed(f"COROSRV_RECORD: {path} cannot be written: {error.strerror}") from error
    log.info("recording what reaches the engine into %s: it holds what users write", path)
    return RecordFile(path, fd)


def fault_of_path(path: str) -> str:
    """Returns why this path cannot be recorded into, as far as can be told without doing so; empty where it can."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            return f"{folder} is no folder that there is"
        return "" if os.access(folder, os.W_OK | os.X_OK) else f"nothing can be written in {folder}"
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link: name the file itself"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no file"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    return ""


def _clear(path: str) -> str:
    """Makes room at the path; returns why there is none."""
    if fault := fault_of_path(path):
        return fault
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        begin = os.pread(fd, _FIXED.size, 0)
        if begin[: len(_MAGIC)] != _MAGIC:
            return f"{path} is a file of another kind: remove it, or choose another path"
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"another engine records into {path}: each needs a file of its own"
        if _STATE.unpack_from(begin.ljust(_FIXED.size, b"\0"), _STATE_AT)[0] == _OPEN:
            _keep(path)
        else:
            os.unlink(path)
    finally:
        os.close(fd)
    return ""


def _keep(path: str) -> None:
    try:
        pid = str(read_head(path).pid)
    except ModelFailed:
        pid = "unknown"
    kept = f"{path}.crashed-{pid}"
    os.replace(path, kept)
    log.warning("the engine that recorded last has crashed, or was killed: its recording is kept in %s", kept)
    beside = Path(path).parent.glob(f"{Path(path).name}.crashed-*")
    files = sorted(beside, key=lambda file: file.lstat().st_mtime_ns)
    for old in files[:-_KEPT]:
        log.warning("%s is removed: %d newer ones are kept", old, _KEPT)
        old.unlink(missing_ok=True)


def read_head(path: str) -> RecordingHead:
    """Reads what a recording was made with. Raises ModelFailed for what is no recording of this version."""
    try:
        with open(path, "rb") as file:
            begin = file.read(_FIXED.size)
            if not begin:
                raise ModelFailed(f"{path} is empty")
            if begin[: len(_MAGIC)] != _MAGIC[: len(begin)]:
                raise ModelFailed(f"{path} is no recording of corosrv's")
            if len(begin) < _FIXED.size:
                raise ModelFailed(f"{path} ends within its head: nothing of it can be replayed")
            _, version, _, size = _FIXED.unpack(begin)
            if version != _VERSION:
                raise ModelFailed(f"{path} has version {version} of the format, and this corosrv reads {_VERSION}")
            encoded = file.read(min(size, _MOST_HEAD))
    except OSError as error:
        raise ModelFailed(f"{path} cannot be read: {error.strerror}") from error
    if len(encoded) < size:
        raise ModelFailed(f"{path} ends within its head: nothing of it can be replayed")
    try:
        return msgspec.json.decode(encoded, type=RecordingHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelFailed(f"the head of {path} is damaged: {error}") from error
