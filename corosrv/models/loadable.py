"""The contract of a pool's members: models that are loaded, run jobs, and are closed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from corosrv.contracts.jobs import Adapter, AnyJob, Chunk, ModelCard, Reader, SlotFile, SlotState, Vocabulary
from corosrv.contracts.jobs.worker import DecodeStats

_LEAST_PART = 0.01  # of a load, from which on its pace says how long it takes


class Footprint(Protocol):
    """The memory of a loaded model in bytes, and the tokens of context of one sequence."""

    @property
    def size(self) -> int: ...

    @property
    def packed_bytes(self) -> int:
        """Copies of the weights in another order."""

    @property
    def context(self) -> int: ...

    @property
    def shared_cells(self) -> int:
        """Tokens that all slots hold together; 0 where each has room for a whole context."""


class LoadProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a load: the part that is done, of 1, and the seconds that the rest should take; None: not known.

    The model may be ready before all is done.
    """

    part: float = 0.0
    seconds_left: float | None = None

    @classmethod
    def after(cls, seconds: float, part: float) -> LoadProgress:
        """Returns the progress after so many seconds, by whose pace the rest is estimated."""
        return cls(part, seconds * (1 - part) / part if part > _LEAST_PART else None)


class Loadable(Protocol):
    """One model that can be loaded once and closed once; the engine is one.

    Readers and vocabularies have to be weakly referable: the pool closes nothing that one of them needs.
    """

    def open(self) -> None:
        """Loads the model; waits until it is ready. Raises ModelFailed."""

    def close(self) -> None:
        """Ends every job; waits for the step in progress. Twice is harmless."""

    def drain(self, message: str) -> None:
        """Refuses new jobs and ends every other with an error chunk of this message."""

    @property
    def load_progress(self) -> LoadProgress:
        """The progress while it is being loaded. Never waits."""

    @property
    def info(self) -> Footprint:
        """Raises Starting before the model is loaded."""

    def card(self, model: str | None) -> ModelCard: ...

    def vocabulary(self, model: str | None) -> Vocabulary: ...

    def submit(self, job: AnyJob) -> Reader[Chunk]:
        """Checks and queues a job; may wait. Raises Refused or Unavailable."""

    def stats(self) -> DecodeStats | None:
        """Counters as of the last step; None before the model is loaded and after it is closed."""

    # As in corosrv.contracts.jobs.HasSlots and HasAdapters, of the one model.

    def slots(self) -> tuple[SlotState, ...]: ...

    def save_slot(self, slot: int, path: str, caller: str = "") -> SlotFile: ...

    def restore_slot(self, slot: int, path: str, caller: str = "") -> SlotFile: ...

    def erase_slot(self, slot: int, caller: str = "") -> int: ...

    def adapters(self) -> tuple[Adapter, ...]: ...

    def set_adapters(self, scales: Mapping[int, float]) -> None: ...
