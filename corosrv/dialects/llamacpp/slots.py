"""Describes slots, and keeps their contents in files."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from corosrv.base.errors import NotFound, Refused
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs import HasSlots, ModelCard, SlotState
from corosrv.dialects.generation import native

_FILENAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,128}")
ACTIONS = ("save", "restore", "erase")
MOST_FILES = 10_000
FULL = "slot_folder_full"


def describe(state: SlotState, card: ModelCard, caller: str = "") -> dict[str, Any]:
    """Describes one slot, without anybody's text. Of another caller's task it tells no more than that there is one."""
    members = {
        "id": state.id,
        "n_ctx": card.meta.get("n_ctx", 0),
        "speculative": False,
        "is_processing": state.is_busy,
    }
    if state.task < 0 or state.sampling is None or state.caller != caller:
        return members
    return members | {
        "id_task": state.task,
        "n_prompt_tokens": state.prompt_tokens,
        "n_prompt_tokens_processed": state.computed_tokens,
        "n_prompt_tokens_cache": state.cached_tokens,
        "params": native.settings_of_sampling(state.sampling, state.max_tokens) | {"stream": state.stream},
        "next_token": [_next_token(state)],
    }


def _next_token(state: SlotState) -> dict[str, Any]:
    if not state.is_busy:
        return {"has_next_token": False, "has_new_line": False, "n_remain": -1, "n_decoded": 0}
    n_remaining = -1 if state.max_tokens is None else max(state.max_tokens - state.generated_tokens, 0)
    return {
        "has_next_token": n_remaining != 0,
        "has_new_line": state.has_new_line,
        "n_remain": n_remaining,
        "n_decoded": state.generated_tokens,
    }


class SlotFiles:
    """Keeps what slots hold in files of one folder. Every method may wait for the disk and the slot.

    `caller` is as in jobs: what it may not see does not exist for it.
    """

    def __init__(self, worker: HasSlots, folder: str, most_bytes: int = 0) -> None:
        """`most_bytes`: no slot is saved while the folder's files have that many; 0: no limit."""
        self._worker = worker
        self._folder = folder
        self._most_bytes = most_bytes

    def save(self, model: str | None, slot: int, filename: str, caller: str = "") -> dict[str, Any]:
        path = self._path(filename)
        call_in_thread(self._check_room, filename)
        began = time.monotonic()
        file = self._worker.save_slot(model, slot, path, caller)
        return {
            "id_slot": slot,
            "filename": filename,
            "n_saved": file.n_tokens,
            "n_written": file.n_bytes,
            "timings": {"save_ms": _ms_since(began)},
        }

    def restore(self, model: str | None, slot: int, filename: str, caller: str = "") -> dict[str, Any]:
        path = self._path(filename)
        if not os.path.isfile(path):
            raise NotFound(f"filename: there is no slot file '{filename}'", "filename")
        began = time.monotonic()
        file = self._worker.restore_slot(model, slot, path, caller)
        return {
            "id_slot": slot,
            "filename": filename,
            "n_restored": file.n_tokens,
            "n_read": file.n_bytes,
            "timings": {"restore_ms": _ms_since(began)},
        }

    def erase(self, model: str | None, slot: int, caller: str = "") -> dict[str, Any]:
        return {"id_slot": slot, "n_erased": self._worker.erase_slot(model, slot, caller)}

    def _path(self, filename: str) -> str:
        """Returns the path of a file in the folder. Raises Refused for a link, a folder, and other names."""
        if not _FILENAME.fullmatch(filename):
            raise Refused(
                "filename must have 1 to 128 letters, digits, dots, dashes or underscores, and not dots alone",
                "filename",
            )
        path = os.path.join(self._folder, filename)
        if os.path.islink(path):
            raise Refused("filename: a link is no slot file", "filename")
        if os.path.exists(path) and not os.path.isfile(path):
            raise Refused(f"filename: '{filename}' is a folder or a device, and no slot file", "filename")
        return path

    def _check_room(self, filename: str) -> None:
        """Raises Refused where the folder is full; the file that is to be replaced does not count."""
        try:
            with os.scandir(self._folder) as entries:
                sizes = [entry.stat(follow_symlinks=False).st_size for entry in entries if entry.name != filename]
        except OSError:
            return  # the save that follows meets the same fault, and reports it
        if len(sizes) >= MOST_FILES:
            raise Refused(f"filename: there are {len(sizes)} files in the folder, which is the limit", "filename", FULL)
        if self._most_bytes and sum(sizes) >= self._most_bytes:
            raise Refused(
                f"filename: the folder's files have {sum(sizes)} bytes, and {self._most_bytes} are allowed "
                "(COROSRV_SLOT_SAVE_BYTES)",
                "filename",
                FULL,
            )


def _ms_since(began: float) -> float:
    return 1000.0 * (time.monotonic() - began)


def number(slot: str, n_slots: int) -> int:
    """Returns the slot's number in a path. Raises Refused, and NotFound for a slot that does not exist."""
    if not re.fullmatch(r"\d{1,9}", slot, re.ASCII):
        raise Refused(f"{slot[:40]!r} is no slot number", "id_slot")
    if int(slot) >= n_slots:
        raise NotFound(f"there is no slot {int(slot)}: they are numbered from 0 to {n_slots - 1}", "id_slot")
    return int(slot)
