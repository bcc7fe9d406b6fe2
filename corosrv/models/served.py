"""One model of a pool: its state, who waits for it, and why it failed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from corosrv.base import errors
from corosrv.contracts.jobs import ModelCard
from corosrv.contracts.jobs.stats import DecodeStats
from corosrv.contracts.settings import ModelSettings
from corosrv.models import size
from corosrv.models.fitting import gguf
from corosrv.models.loadable import Download, Loadable
from corosrv.models.plan import Standing
from corosrv.models.state import ModelState, check_move
from corosrv.models.uses import Uses
from corosrv.models.wakeup import Wakeup
from corosrv.workers.dispatch.estimates import Backoff

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
# The words of model lists. Unloading counts as unloaded, because a request has to wait for another load.
_STATUS = {
    ModelState.UNLOADED: "unloaded",
    ModelState.DOWNLOADING: "downloading",
    ModelState.LOADING: "loading",
    ModelState.READY: "loaded",
    ModelState.UNLOADING: "unloaded",
    ModelState.FAILED: "failed",
}


class ServedModel:
    """Owned by its pool, under whose lock all of it is called. Moves only as `models.state` allows."""

    def __init__(
        self, settings: ModelSettings, on_idle: Callable[[], None], limit: int = 0, other_files: Sequence[int] = ()
    ) -> None:
        """`limit`: the bytes that all models may take, 0 for none; `other_files`: the sizes of the others' files."""
        self._named = settings  # as the operator wrote them; `settings` have files in place of a hub's name
        self.settings = settings
        self.names = settings.names
        self.state = ModelState.UNLOADED
        self.engine: Loadable | None = None
        self.download: Download | None = None  # while one is under way
        self.uses = Uses(on_idle)
        self.wanted_since: float | None = None
        self.n_loads = 0
        self._is_asked = False
        self.failure = ""
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        self._retry_at = 0.0
        self._wakeups: list[Wakeup] = []
        self._limit, self._other_files = limit, other_files
        self._look()
        self._card = self._unloaded_card()
        self._shown: tuple[ModelCard, ModelState, ModelCard] | None = None  # what the card was made of, and that card

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def standing(self) -> Standing:
        return Standing(
            self.name, self.state, self.bytes, self.wanted_since, not self.settings.is_hub, self.is_used,
            self.uses.idle_since,
        )  # fmt: skip

    @property
    def card(self) -> ModelCard:
        if self.download is not None:
            progress = {"bytes": self.download.bytes, "total": self.download.total}
            return replace(self._card, status=_STATUS[self.state], progress=progress)
        cached = self._shown
        if cached is None or cached[0] is not self._card or cached[1] is not self.state:
            cached = self._shown = self._card, self.state, replace(self._card, status=_STATUS[self.state])
        return cached[2]

    def stats(self) -> DecodeStats | None:
        """Counters as of the last step; None while it is not loaded."""
        return self.engine.stats() if self.engine is not None and self.state is ModelState.READY else None

    # Waiters

    def want(self) -> None:
        """Has the model loaded as soon as there is room."""
        if self.wanted_since is not None or self.state is ModelState.READY:
            return
        self.wanted_since = time.monotonic()
        if self.engine is None and self.download is None:
            # The file may have come, changed or gone since the last look.
            if self._named.is_hub and not os.path.exists(self.settings.model):
                self.settings = self._named
            self._look()

    def _look(self) -> None:
        """Reads the file's head, and estimates what the model takes."""
        self._facts = gguf.read(self.settings.model)
        self.bytes = size.estimate(self.load_settings, self._facts)

    @property
    def load_settings(self) -> ModelSettings:
        """The settings to load it with: where slots or context are open, they are fitted into its share."""
        settings = self.settings
        if settings.memory_bytes or (settings.slots and settings.ctx) or self._facts is None:
            return settings
        return replace(settings, memory_bytes=size.share(self._limit, self._facts.size, self._other_files))

    def ask(self) -> None:
        """Has the model loaded for the operator, who does not wait for it."""
        self._is_asked = self.state is not ModelState.READY
        self.want()

    def join(self) -> Wakeup:
        """Has the model loaded for a request; returns what wakes it at each change of state, to be given to leave()."""
        wakeup = Wakeup()
        self._wakeups.append(wakeup)
        self.want()
        return wakeup

    def leave(self, wakeup: Wakeup) -> None:
        """Ends a request's wait; a load that has begun goes on."""
        self._wakeups.remove(wakeup)
        wakeup.close()
        if not self._wakeups and not self._is_asked and self.state is not ModelState.LOADING:
            self.wanted_since = None

    @property
    def is_used(self) -> bool:
        """True when jobs of the model are alive, or requests wait for it."""
        return bool(self._wakeups) or self.uses.is_used

    def wake(self) -> None:
        for wakeup in self._wakeups:
            wakeup.set()

    # State

    def begin_download(self, download: Download) -> None:
        self._enter(ModelState.DOWNLOADING)
        self.download = download

    def downloaded(self, settings: ModelSettings) -> None:
        """Notes that the files are there, which `settings` name; the model is loaded next, if it is still wanted."""
        self.settings, self.download = settings, None
        self._look()
        self._card = self._unloaded_card()
        self._enter(ModelState.UNLOADED)

    def cancel_download(self) -> None:
        """Ends a download that nobody wants any more; what is there of the files stays."""
        assert self.download is not None
        self.download.cancel()
        self.download = None
        self._settle()
        self._enter(ModelState.UNLOADED)

    def begin_load(self, engine: Loadable) -> None:
        self._enter(ModelState.LOADING)
        self.engine = engine

    def loaded(self) -> None:
        """Notes that the model's engine is open."""
        assert self.engine is not None
        self._enter(ModelState.READY)
        self.n_loads += 1
        self._backoff.succeed(time.monotonic())
        self.failure = ""
        self.uses.idle_since = time.monotonic()
        self._card = replace(self.engine.card(None), created=self._card.created)
        self.bytes = size.measured(self.settings, self._facts, self.engine.info, self._card.slots)
        self._settle()

    def failed(self, reason: str) -> None:
        """Notes why the model could not be loaded; closing its engine is left to the caller."""
        now = time.monotonic()
        self._retry_at = now + self._backoff.fail(now)
        self.failure = reason
        self.engine = self.download = None
        self._settle()
        self._enter(ModelState.FAILED)

    def _settle(self) -> None:
        self.wanted_since = None
        self._is_asked = False

    def begin_unload(self) -> None:
        self._settle()
        self._enter(ModelState.UNLOADING)

    def unloaded(self) -> None:
        self.engine = None
        self._enter(ModelState.UNLOADED)

    def _enter(self, state: ModelState) -> None:
        check_move(self.state, state)
        self.state = state
        self.wake()

    def check_failed(self) -> None:
        """Raises ModelFailed while it is too early to try again."""
        seconds = self._retry_at - time.monotonic()
        if self.state is ModelState.FAILED and seconds > 0:
            raise errors.ModelFailed(
                f"the model '{self.name}' could not be loaded: {self.failure}", retry_after=math.ceil(seconds)
            )

    def _unloaded_card(self) -> ModelCard:
        """Makes the card of a model that is not loaded."""
        facts = self._facts
        meta = {} if facts is None else {"n_ctx_train": facts.n_ctx_train, "n_embd": facts.n_embd, "size": facts.size}
        return ModelCard(
            self.name, int(time.time()), self.settings.aliases, self.settings.labels, meta=meta, file=self.settings.file
        )
