"""The protocol of everything that takes jobs."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from corosrv.contracts.jobs.chunk import Chunk
from corosrv.contracts.jobs.job import AnyJob
from corosrv.contracts.jobs.model import ModelCard
from corosrv.contracts.jobs.reader import Reader
from corosrv.contracts.jobs.vocabulary import Vocabulary


class State(str, Enum):
    """States of a worker."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"


class Worker(Protocol):
    """Anything that can run jobs."""

    @property
    def state(self) -> State: ...

    def check(self) -> None:
        """Raises the Unavailable that a job would meet now."""

    def models(self) -> tuple[ModelCard, ...]:
        """Returns every configured model, loaded or not. Never waits."""

    def card(self, model: str | None) -> ModelCard:
        """Returns the model that a job of this name would get. May wait while it is loaded.

        Raises ModelNotFound or Unavailable.
        """

    def vocabulary(self, model: str | None) -> Vocabulary:
        """Returns that model's vocabulary. May wait while it is loaded; raises as `card` does."""

    def submit(self, job: AnyJob) -> Reader[Chunk]:
        """Checks and queues a job; may wait while a long prompt is read. Raises Refused or Unavailable."""
