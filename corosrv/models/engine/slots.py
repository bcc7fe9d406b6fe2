"""The slots of an engine: notes on the tasks that run in them, and their contents saved to files, restored and erased.

A file has a header, tokens, scales of adapters, the model's own state, and a digest of it all. It belongs to the caller
who saved it. `SlotKeeper` takes the decode thread's part and the disk's in turn.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import stat
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from threading import BoundedSemaphore
from typing import BinaryIO

import msgspec

from corosrv.base import waits
from corosrv.base.errors import NotFound, QueueFull, Refused, SlotBusy, Unavailable
from corosrv.base.waits import ThreadLock
from corosrv.contracts.jobs import Sampling, SlotFile, SlotState
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine.binding import (
    ModelInfo,
    NativeEngine,
    NativeSlotRequest,
    SlotAction,
    SlotContent,
    SlotCounters,
    Task,
)

# Magic, version, owner, the model's identity, numbers of tokens and scales, bytes of state.
_HEADER = struct.Struct("<8sIQ32sIIQ")
_MAGIC = b"corosrv\x00"
_VERSION = 1
_DIGEST_BYTES = 32
_TOKEN_BYTES = _SCALE_BYTES = 4


class FileOwner(msgspec.Struct, frozen=True):
    """The caller that a file belongs to, and its model."""

    model: bytes  # 32 bytes that no other model has
    caller: int  # of 64 bits


class SlotFileLimits(msgspec.Struct, frozen=True):
    """The most that a file may hold."""

    tokens: int
    scales: int
    state_bytes: int


def write(path: str, content: SlotContent, owner: FileOwner) -> int:
    """Writes all or nothing, and returns the bytes. Takes long; raises Refused for a file that is another caller's."""
    if _caller_of(path) not in (None, owner.caller):
        raise Refused("filename: this name is taken", "filename")
    header = _HEADER.pack(
        _MAGIC, _VERSION, owner.caller, owner.model, len(content.tokens) // _TOKEN_BYTES,
        len(content.adapter_scales) // _SCALE_BYTES, len(content.state),
    )  # fmt: skip
    parts = (header, content.tokens, content.adapter_scales, content.state)
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
    try:
        with open(unfinished, "xb", opener=_private) as file:
            for part in (*parts, _digest(parts)):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            n_bytes = file.tell()
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(unfinished)
        raise Unavailable(f"the slot file could not be written: {error.strerror}") from error
    return n_bytes


def read(path: str, owner: FileOwner, limits: SlotFileLimits) -> tuple[SlotContent, int]:
    """Reads a file's content and its size in bytes. Takes long; raises NotFound and Refused.

    Nothing is allocated for numbers that a file only claims.
    """
    try:
        with open(path, "rb", opener=_no_link) as file:
            return _read(file, os.path.basename(path), owner, limits)
    except OSError as error:
        raise _not_found(os.path.basename(path)) from error


def _read(file: BinaryIO, name: str, owner: FileOwner, limits: SlotFileLimits) -> tuple[SlotContent, int]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise Refused("filename: this is no file", "filename")
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise _broken("it does not begin like one")
    _, version, caller, model, n_tokens, n_scales, n_state = _HEADER.unpack(header)
    if version != _VERSION:
        raise _broken(f"it has version {version}, and {_VERSION} is read here")
    if caller != owner.caller:
        raise _not_found(name)
    if n_tokens > limits.tokens or n_scales > limits.scales or n_state > limits.state_bytes:
        raise _broken(
            f"its {n_tokens} tokens and {n_state} bytes are more than a slot of {limits.tokens} tokens and a prefix "
            f"cache of {limits.state_bytes} bytes take"
        )
    sizes = (_TOKEN_BYTES * n_tokens, _SCALE_BYTES * n_scales, n_state)
    if status.st_size != _HEADER.size + sum(sizes) + _DIGEST_BYTES:
        raise _broken("it is longer or shorter than it says")
    parts = [file.read(size) for size in sizes]
    if file.read(_DIGEST_BYTES) != _digest([header, *parts]):
        raise _broken("its digest is another one")
    if model != owner.model:
        raise _broken("it was written for another model, or by another build of libllama")
    return SlotContent(*parts), status.st_size


def _caller_of(path: str) -> int | None:
    """Returns the caller that a file belongs to; None where there is no slot file."""
    try:
        with open(path, "rb", opener=_no_link) as file:
            header = file.read(_HEADER.size)
    except OSError:
        return None
    is_ours = len(header) == _HEADER.size and header.startswith(_MAGIC)
    return int(_HEADER.unpack(header)[2]) if is_ours else None


def _digest(parts: Sequence[bytes | memoryview]) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _no_link(path: str, flags: int) -> int:
    # Whoever opens a pipe would wait for its other end.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _not_found(name: str) -> NotFound:
    return NotFound(f"filename: there is no slot file '{name}'", "filename")


def _broken(why: str) -> Refused:
    return Refused(f"filename: this is no slot file that can be read: {why}", "filename")


_BREAKERS = Sampling().dry_sequence_breakers  # the same for all jobs that name none


@dataclass(frozen=True, slots=True)
class TaskNote:
    """The options of a job that a slot shows: numbers, and no text of a request."""

    sampling: Sampling
    max_tokens: int | None
    stream: bool
    caller: str

    @classmethod
    def of_task(cls, task: Task, caller: str, is_streamed: bool) -> TaskNote:
        sampling = task.sampling
        if sampling.logit_bias or sampling.grammar or sampling.dry_sequence_breakers != _BREAKERS:
            sampling = replace(sampling, logit_bias=(), grammar="", grammar_triggers=(), dry_sequence_breakers=())
        return cls(sampling, None if task.max_tokens < 0 else task.max_tokens, is_streamed, caller)


class TaskNotes:
    """Numbers tasks, and keeps a note of those that a slot may show. Any thread may call.

    Bounded: of more tasks than may run and wait, and the same again for slots that rest, the oldest are forgotten. A
    slot whose task runs longer than all these shows its counters alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = 2 * limit
        self._lock = ThreadLock()
        self._numbers = itertools.count()
        self._notes: OrderedDict[int, TaskNote] = OrderedDict()

    def number(self, note: TaskNote | None = None) -> int:
        """Returns the number of one more task; `note` is what slots show of it."""
        with self._lock:
            number = next(self._numbers)
            if note is not None:
                self._notes[number] = note
                while len(self._notes) > self._limit:
                    self._notes.popitem(last=False)
        return number

    def describe(self, slots: Iterable[SlotCounters]) -> tuple[SlotState, ...]:
        """Joins the loop's counters of each slot with the note of its task."""
        return tuple(self._state(number, slot) for number, slot in enumerate(slots))

    def _state(self, number: int, slot: SlotCounters) -> SlotState:
        note = self._notes.get(slot.task)
        return SlotState(
            number,
            bool(slot.is_busy),
            slot.task,
            slot.prompt_tokens,
            slot.computed_tokens,
            slot.cached_tokens,
            slot.generated_tokens,
            has_new_line=bool(slot.has_new_line),
            max_tokens=None if note is None else note.max_tokens,
            sampling=None if note is None else note.sampling,
            stream=note is not None and note.stream,
            caller="" if note is None else note.caller,
        )


PATIENCE = 30.0  # seconds that a busy slot is waited for
MOST_AT_ONCE = 4  # each may hold as much memory as the largest prefix
_SAMPLES, _SAMPLE_BYTES = 64, 64 << 10


class SlotKeeper:
    """Saves, restores and erases slots. Any thread may call; all methods wait, and raise SlotBusy after PATIENCE s.

    What one owner's tasks left, and its files, are not there for others.
    """

    def __init__(self, native: NativeEngine, settings: ModelSettings, info: ModelInfo, fingerprint: str) -> None:
        self._native = native
        self._settings = settings
        self._info = info
        self._fingerprint = fingerprint
        self._places = BoundedSemaphore(MOST_AT_ONCE)

    def save(self, slot: int, path: str, caller: int) -> SlotFile:
        """Raises Refused for a slot that holds nothing of the caller's."""
        with self._place():
            request = self._native.request_slot(SlotAction.SAVE, slot, caller)
            self._wait(request, slot)
            return waits.call_in_thread(self._write, request, path, caller)

    def restore(self, slot: int, path: str, caller: int) -> SlotFile:
        """Raises NotFound for a file that is not there or another caller's, Refused for what is none of this model."""
        with self._place():
            request, file = waits.call_in_thread(self._read, slot, path, caller)
            self._wait(request, slot)
            _check(request)
            return file

    def erase(self, slot: int, caller: int) -> int:
        """Erases the slot's content and returns how many tokens that was."""
        with self._place():
            request = self._native.request_slot(SlotAction.ERASE, slot, caller)
            self._wait(request, slot)
            return request.result().n_tokens

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise QueueFull(f"{MOST_AT_ONCE} slots are being saved, restored or erased; try again later")
        try:
            yield
        finally:
            self._places.release()

    def _wait(self, request: NativeSlotRequest, slot: int) -> None:
        try:
            waits.wait_readable(request.fd, PATIENCE)
        except waits.TimedOut:
            raise SlotBusy(f"slot {slot} is busy; try again when its task has ended") from None
        finally:
            request.abandon()  # nothing, once there is an answer

    # In a thread: what these are handed lives until they return, also when the greenlet that waits is killed.

    def _write(self, request: NativeSlotRequest, path: str, caller: int) -> SlotFile:
        content = request.result()
        return SlotFile(content.n_tokens, write(path, content, FileOwner(self._model, caller)))

    def _read(self, slot: int, path: str, caller: int) -> tuple[NativeSlotRequest, SlotFile]:
        limits = SlotFileLimits(self._info.context, self._info.n_adapters, self._settings.cache_bytes)
        content, n_bytes = read(path, FileOwner(self._model, caller), limits)
        request = self._native.request_slot(SlotAction.RESTORE, slot, caller, content)
        return request, SlotFile(content.n_tokens, n_bytes)

    @cached_property
    def _model(self) -> bytes:
        """32 bytes that no other model has, nor the same with other kernels or adapters. Reads samples of the files."""
        info = self._info
        identity = (
            self._fingerprint,
            info.n_vocab,
            info.n_embd,
            info.n_params,
            info.size,
            info.ftype,
            info.description,
        )
        digest = hashlib.blake2b(msgspec.json.encode(identity), digest_size=32)
        for path in (self._settings.model, *(path for path, _ in self._settings.adapters)):
            if os.path.isfile(path):
                digest.update(_sampled(path))
        return digest.digest()


def _check(request: NativeSlotRequest) -> None:
    """Raises Refused for a content that the engine did not take: the file is at fault."""
    try:
        request.result()
    except Refused as error:
        raise Refused(f"filename: {error}", "filename") from error


def _sampled(path: str) -> bytes:
    """Hashes a file's size and pieces from all over it: weights take too long to be read whole."""
    size = os.path.getsize(path)
    digest = hashlib.blake2b(str(size).encode(), digest_size=32)
    with open(path, "rb") as file:
        for sample in range(_SAMPLES):
            file.seek(sample * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
