"""The slots of a worker: what runs in them, and what they leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from corosrv.contracts.jobs.sampling import Sampling


@dataclass(frozen=True, slots=True)
class SlotState:
    """State of a slot as of the last step: what it does, or did last. It holds no text of a request."""

    id: int
    is_busy: bool
    task: int = -1  # counted from 0 over all jobs; -1: the slot was never used, and what follows says nothing
    prompt_tokens: int = 0
    computed_tokens: int = 0  # of the prompt
    cached_tokens: int = 0  # of the prompt, that did not have to be computed
    generated_tokens: int = 0
    max_tokens: int | None = None
    has_new_line: bool = False
    sampling: Sampling | None = None  # without its texts and biases; None where it is not known any more
    stream: bool = False
    caller: str = ""  # whose task it is


@dataclass(frozen=True, slots=True)
class SlotFile:
    """Counts of what was written to a slot's file, or read from it."""

    n_tokens: int
    n_bytes: int


class HasSlots(Protocol):
    """A worker whose lanes can be looked at, and their computed prompts be kept in files."""

    def slots(self, model: str | None) -> tuple[SlotState, ...]:
        """Lists every slot, by its number. Never waits for a step."""

    # These three wait until the slot is idle, and raise SlotBusy when that takes long, Refused for a slot that there is
    # not. `caller` is a job's: what others' jobs left, and their files, are not found.

    def save_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        """Writes what the slot's last job left. Raises Refused where that is nothing, or is kept no longer."""

    def restore_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        """Reads it back: prompts that begin like it need not compute it again. Raises NotFound, and Refused for a file
        that is broken or none of this model's."""

    def erase_slot(self, model: str | None, slot: int, caller: str = "") -> int:
        """Forgets what the slot's last job left; returns how many tokens that was."""
