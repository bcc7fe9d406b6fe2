"""One model of a pool: its state, its uses, who waits for it, and why it failed.

A use is a job that is alive or a call under way; it may end anywhere, also in the garbage collector, and `Wakeup` wakes
a waiter from any thread.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from corosrv.base import errors
from corosrv.base.errors import NoDescriptor, retry_seconds
from corosrv.base.waits import TimedOut, wait_readable
from corosrv.contracts.jobs import ModelCard
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.contracts.settings import ModelSettings
from corosrv.models import plan
from corosrv.models.fitting import gguf
from corosrv.models.fitting.plan import DEFAULT_CONTEXT, DEFAULT_SLOTS
from corosrv.models.loadable import Loadable, LoadProgress
from corosrv.models.plan import ModelState, Standing, check_move
from corosrv.workers.dispatch.estimates import Backoff

if TYPE_CHECKING:
    from corosrv.models.hub.download import HubDownload

log = logging.getLogger("corosrv")


class Uses:
    """Counts uses. All of it under the pool's lock, but for a use's end, which may come from anywhere.

    Things that are used until they are dropped (readers, vocabularies) may be dropped by the garbage collector, in
    any thread and in the middle of anything: so the end of a use takes no lock, it is noted and counted later.
    """

    def __init__(self, on_idle: Callable[[], None] | None) -> None:
        """`on_idle` is called at the end of the last use, from wherever that is; None: that matters to nobody."""
        self._on_idle = on_idle
        self._n_begun = 0
        self._ended: deque[None] = deque()
        self._alive: set[weakref.ref[object]] = set()  # things that are used until they are dropped
        self.idle_since = time.monotonic()

    @property
    def is_used(self) -> bool:
        while self._ended:
            self._ended.popleft()
            self._n_begun -= 1
        return self._n_begun > 0

    def begin(self) -> None:
        """Counts a use that lasts until end() is called."""
        self._n_begun += 1

    def until_dropped(self, thing: object) -> None:
        """Counts a use that lasts as long as `thing` lives."""
        self._n_begun += 1
        self._alive.add(weakref.ref(thing, self._dropped))

    def _dropped(self, reference: weakref.ref[object]) -> None:
        self._alive.discard(reference)
        self.end()

    def end(self) -> None:
        """Ends a use that begin() counted. Any thread, at any moment."""
        self.idle_since = time.monotonic()
        self._ended.append(None)
        if self._on_idle is not None and len(self._ended) == self._n_begun:
            self._on_idle()


class Wakeup:
    """Wakes a greenlet or a thread that waits; may be set from any thread, also by the garbage collector.

    Calls of set() while nobody waits end the next wait, all together. Unless close() is called, the descriptor lives
    as long as the object.
    """

    _fd = -1

    def __init__(self) -> None:
        """Raises NoDescriptor when the process has no file descriptor left."""
        try:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise NoDescriptor("no file descriptor is left to wait for a model: raise the limit (ulimit -n)") from error

    def set(self) -> None:
        os.eventfd_write(self._fd, 1)

    def wait(self, timeout: float | None) -> None:
        """Waits until set() is or was called, or for `timeout` seconds."""
        try:
            wait_readable(self._fd, timeout)
        except TimedOut:
            return
        os.eventfd_read(self._fd)

    def close(self) -> None:
        """Closes the descriptor; nobody may call set() any more. Twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
_RANK = 4  # the pooling of models that score documents
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
    """One model of a pool, which owns it and calls all of it under its lock. Moves as corosrv.models.plan allows."""

    def __init__(
        self,
        settings: ModelSettings,
        on_idle: Callable[[], None] | None,
        limit: int = 0,
        other_files: Sequence[int] = (),
    ) -> None:
        """`limit`: the bytes that all models may take, 0 for none; `other_files`: the sizes of the others' files."""
        self._named = settings  # as the operator wrote them; `settings` have files in place of a hub's name
        self.settings = settings
        self.names = settings.names
        self.name = self.names[0]
        self.state = ModelState.UNLOADED
        self.engine: Loadable | None = None
        self.download: HubDownload | None = None  # while one is under way
        self.uses = Uses(on_idle)
        self.wanted_since: float | None = None
        self.n_loads = 0
        self._began = 0.0  # when its download or its load did
        self._load_s = 0.0  # that the last load took
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
    def standing(self) -> Standing:
        uses, is_here = self.uses, not self.settings.is_hub
        return Standing(self.name, self.state, self.bytes, self.wanted_since, is_here, self.is_used, uses.idle_since)

    @property
    def card(self) -> ModelCard:
        if self.state is ModelState.LOADING or self.download is not None:
            return replace(self._card, status=_STATUS[self.state], progress=self._progress())
        cached = self._shown
        if cached is None or cached[0] is not self._card or cached[1] is not self.state:
            cached = self._shown = self._card, self.state, replace(self._card, status=_STATUS[self.state])
        return cached[2]

    @property
    def known_card(self) -> ModelCard:
        """The card, with the texts of its file if they were read, and with what it should get once it is loaded."""
        card = self.card
        if self.n_loads:
            return card
        settings, texts = self.settings, self.texts or gguf.HeadTexts()
        n_ctx_train = 0 if self.facts is None else self.facts.n_ctx_train
        n_ctx = min(settings.ctx or DEFAULT_CONTEXT, n_ctx_train or sys.maxsize)
        return replace(
            card,
            meta=card.meta | {"n_ctx": n_ctx},
            slots=settings.slots or DEFAULT_SLOTS,
            capabilities=self._abilities(texts.pooling),
            chat_template=settings.chat_template or texts.chat_template,
            bos=texts.bos,
            eos=texts.eos,
        )

    def _abilities(self, pooling: int) -> frozenset[str]:
        """Returns what the model should be able to do, by its file and how it pools."""
        images = {"images"} if self.settings.mmproj else set()
        if self.facts is None:
            return frozenset(images)
        if pooling == _RANK:
            return frozenset({"rerank"})
        is_encoder = pooling or not self.facts.cache.layers
        return frozenset({"embeddings"} if is_encoder else {"completion", "chat", "tools"} | images)

    def _progress(self) -> dict[str, int]:
        if self.download is not None:
            return {"bytes": self.download.bytes, "total": self.download.total}
        total = 0 if self.facts is None else self.facts.size
        return {"bytes": int(self.part * total), "total": total} if total else {}

    @property
    def part(self) -> float:
        """The part of its download or of its load that is done, of 1."""
        if self.download is not None:
            return self.download.bytes / self.download.total if self.download.total else 0.0
        return self.engine.load_progress.part if self.engine is not None and self.state is ModelState.LOADING else 0.0

    def retry_after(self) -> int:
        """Estimates the seconds until it is loaded, by how far it is, or by what its last load took; from 1 to 120."""
        if self.state not in (ModelState.DOWNLOADING, ModelState.LOADING):
            return retry_seconds(self._load_s)
        seconds = time.monotonic() - self._began
        progress = LoadProgress.after(seconds, self.part) if self.engine is None else self.engine.load_progress
        return retry_seconds(self._load_s - seconds if progress.seconds_left is None else progress.seconds_left)

    @property
    def loading_words(self) -> str:
        """Returns how far its download or its load is, for clients."""
        if self.download is not None:
            return f"the model is being downloaded: {self.download.words}"
        part = self.part
        return f"the model is still loading{f': {100 * part:.0f} %' if part else ''}"

    def __enter__(self) -> Loadable:
        """Returns the engine, for a use that was counted, and ends with the block."""
        assert self.engine is not None
        return self.engine

    def __exit__(self, *error: object) -> None:
        self.uses.end()

    def stats(self) -> DecodeStats | None:
        """Counters as of the last step; None while it is not loaded."""
        return self.engine.stats() if self.engine is not None and self.state is ModelState.READY else None

    # Waiters

    def want(self) -> None:
        """Requests that the model is loaded as soon as there is room."""
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
        self.facts = gguf.read(self.settings.model)  # of the head of its file; None where there is none
        self.texts: gguf.HeadTexts | None = None  # of the same; None until somebody asks for them
        self.bytes = plan.estimate(self.load_settings, self.facts)

    @property
    def load_settings(self) -> ModelSettings:
        """The settings to load it with: where slots or context are open, they are fitted into its share."""
        settings = self.settings
        if settings.memory_bytes or (settings.slots and settings.ctx) or self.facts is None:
            return settings
        return replace(settings, memory_bytes=plan.share(self._limit, self.facts.size, self._other_files))

    def ask(self) -> None:
        """Requests the model for the operator, who does not wait for it."""
        self._is_asked = self.state is not ModelState.READY
        self.want()

    def join(self) -> Wakeup:
        """Requests the model for a call; returns its wake-up for changes of state, to be given to leave()."""
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

    def begin_download(self, download: HubDownload) -> None:
        self._enter(ModelState.DOWNLOADING)
        self._began = time.monotonic()
        self.download = download

    def downloaded(self, settings: ModelSettings) -> None:
        """Notes that the files are there, which `settings` name; the model is loaded next, if it is still wanted."""
        self.settings, self.download = settings, None
        self._look()
        self._card = self._unloaded_card()
        self._enter(ModelState.UNLOADED)

    def cancel_download(self) -> None:
        """Cancels a download that no request wants any more; what has arrived stays."""
        assert self.download is not None
        self.download.cancel()
        self.download = None
        self._settle()
        self._enter(ModelState.UNLOADED)

    def begin_load(self, engine: Loadable) -> None:
        self._enter(ModelState.LOADING)
        self._began = time.monotonic()
        self.engine = engine

    def loaded(self) -> None:
        """Notes that the model's engine is open."""
        assert self.engine is not None
        self._enter(ModelState.READY)
        self._load_s = time.monotonic() - self._began
        self.n_loads += 1
        self._backoff.succeed(time.monotonic())
        self.failure = ""
        self.uses.idle_since = time.monotonic()
        self._card = replace(self.engine.card(None), created=self._card.created)
        self.bytes = plan.measured(self.settings, self.facts, self.engine.info, self._card.slots)
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
        facts = self.facts
        meta = {} if facts is None else {"n_ctx_train": facts.n_ctx_train, "n_embd": facts.n_embd, "size": facts.size}
        return ModelCard(
            self.name, int(time.time()), self.settings.aliases, self.settings.labels, meta=meta, file=self.settings.file
        )


def named_adapters(models: Sequence[ServedModel]) -> Mapping[str, tuple[ServedModel, int]]:
    """Returns the models and the numbers of LoRA adapters by the stems of their files, which jobs may name.

    Left out, and told in the log, are those whose names others have as well.
    """
    found = [(Path(path).stem, model, id) for model in models for id, (path, _) in enumerate(model.settings.adapters)]
    used = Counter(name for model in models for name in {*model.names})
    used.update(stem for stem, _, _ in found)
    for stem in dict.fromkeys(stem for stem, _, _ in found if used[stem] > 1):
        log.warning("the LoRA adapter %s cannot be asked for by its name, because others have the same", stem)
    return {stem: (model, id) for stem, model, id in found if used[stem] == 1}
