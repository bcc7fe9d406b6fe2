"""Saves slots' contents in files, restores and erases them: the decode thread's part and the disk's, in turn."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import BoundedSemaphore

import msgspec

from corosrv.base import waits
from corosrv.base.errors import QueueFull, Refused, SlotBusy
from corosrv.contracts.jobs import SlotFile
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import slot_file
from corosrv.models.engine.binding import ModelInfo, NativeEngine, NativeSlotRequest, SlotAction
from corosrv.models.engine.slot_file import FileOwner, SlotFileLimits

PATIENCE = 30.0  # seconds that a busy slot is waited for
MOST_AT_ONCE = 4  # each may hold as much memory as the largest prefix
_SAMPLES, _SAMPLE_BYTES = 64, 64 << 10


class SlotKeeper:
    """Any thread may call; all methods wait, for a busy slot up to PATIENCE seconds, and raise SlotBusy then.

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
        return SlotFile(content.n_tokens, slot_file.write(path, content, FileOwner(self._model, caller)))

    def _read(self, slot: int, path: str, caller: int) -> tuple[NativeSlotRequest, SlotFile]:
        limits = SlotFileLimits(self._info.context, self._info.n_adapters, self._settings.cache_bytes)
        content, n_bytes = slot_file.read(path, FileOwner(self._model, caller), limits)
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
    """A digest of a file's size and of pieces from all over it: weights take too long to be read whole."""
    size = os.path.getsize(path)
    digest = hashlib.blake2b(str(size).encode(), digest_size=32)
    with open(path, "rb") as file:
        for sample in range(_SAMPLES):
            file.seek(sample * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
