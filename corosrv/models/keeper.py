"""Loads and unloads the models of a pool, as the plan says."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import gevent.monkey

from corosrv.base import errors, waits
from corosrv.contracts.settings import ModelSettings, Settings
from corosrv.models import plan as size
from corosrv.models.loadable import Loadable
from corosrv.models.plan import HOLDING, LoadPlan, ModelState, Standing, plan
from corosrv.models.served import ServedModel, Wakeup

if TYPE_CHECKING:
    from corosrv.models.hub.download import HubDownload

log = logging.getLogger("corosrv.models")

# The system's own, whatever is patched: held for a few lines, never across a switch, so no greenlet waits for another.
_RLock = gevent.monkey.get_original("_thread", "RLock")


_OTHERS_PAUSE = 1.0  # seconds between two looks at whether others have let go of memory
_ENGINES_PAUSE = 0.1  # and at whether engines have ended that were asked to


class EngineMemory(Protocol):
    """Counts the engines of all worker processes; see corosrv.models.engine.process.budget."""

    def lock_out_others(self) -> AbstractContextManager[None]: ...
    def held_bytes(self, models: Iterable[ModelSettings]) -> tuple[int, list[bool]]: ...
    def reserve(self, model: ModelSettings, n_bytes: int) -> None: ...
    def note(self, model: ModelSettings, n_bytes: int) -> None: ...
    def give_up(self, model: ModelSettings) -> None: ...
    def ask_for_room(self, n_bytes: int) -> None: ...


class Keeper:
    """A greenlet of the thread that calls `start`, or a thread where there is no hub. Owns the models and their lock.

    It alone begins to load, and to unload models without being asked; it sleeps until somebody wakes it, or until the
    next model has been idle for long enough.
    """

    def __init__(
        self,
        settings: Settings,
        make: Callable[[ModelSettings], Loadable],
        memory_elsewhere: Callable[[], int] = lambda: 0,
        make_download: Callable[[ModelSettings], HubDownload] | None = None,
        on_failed_load: Callable[[], None] = lambda: None,
        engines: EngineMemory | None = None,
    ) -> None:
        """`memory_elsewhere`: the bytes of the budget that worker processes claim. `make_download`: for models of a
        hub, where there may be some. `on_failed_load`: called after each load that fails. `engines`: counts all of
        them, where they have processes of their own; None: the models of this process are all that there are.
        """
        self._engines = engines
        self._make_download = make_download
        self._memory_elsewhere = memory_elsewhere
        self._on_failed_load = on_failed_load
        self.lock = _RLock()
        self._wakeup = Wakeup()
        self._make = make
        self._limit = settings.server.model_bytes
        self._idle_s = settings.server.model_idle_s
        self._is_stopped = False
        # The end of a use matters only if models are unloaded without being asked.
        on_idle = self._wakeup.set if self._limit or self._idle_s else None
        sizes = [size.file_bytes(model) for model in settings.models]
        self.models: Sequence[ServedModel] = tuple(
            ServedModel(model, on_idle, self._limit, sizes[:number] + sizes[number + 1 :])
            for number, model in enumerate(settings.models)
        )

    def start(self) -> None:
        """Begins to work; returns at once."""
        waits.spawn("corosrv-models", self._keep)

    def wake(self) -> None:
        """Looks again soon, because something changed that needs a load or makes room for one. Any thread."""
        self._wakeup.set()

    def stop(self) -> None:
        """Stops loading and unloading on its own, and wakes everybody who waits for a model."""
        self._is_stopped = True
        with self.lock:
            for model in self.models:
                model.wake()
        self._wakeup.set()

    def _keep(self) -> None:
        while not self._is_stopped:
            next_at = self._act()
            self._wakeup.wait(None if next_at is None else max(0.0, next_at - time.monotonic()))

    def _act(self) -> float | None:
        """Carries out the plan; returns when to look again at the latest. Never waits."""
        by_name = {model.name: model for model in self.models}
        with self.lock:
            standings = [model.standing for model in self.models]
            now, elsewhere = time.monotonic(), self._memory_elsewhere()
            n_wanted = sum(model.can_load for model in standings)
            engines = self._engines if self._limit and n_wanted else None
            with contextlib.nullcontext() if engines is None else engines.lock_out_others():
                decided = self._plan(standings, now, elsewhere, engines)
                for name in decided.unload:
                    self.begin_unload(by_name[name])
                for model in standings:
                    if model.can_download:
                        self._begin_download(by_name[model.name])
                for name in decided.load:
                    self._begin_load(by_name[name])
            waits_for_others = (elsewhere > 0 or engines is not None) and len(decided.load) < n_wanted
            pause = _OTHERS_PAUSE if engines is None else _ENGINES_PAUSE
        if engines is not None and decided.shortage:
            engines.ask_for_room(decided.shortage)
        return min(decided.next_at or math.inf, now + pause) if waits_for_others else decided.next_at

    def _plan(
        self, standings: Sequence[Standing], now: float, elsewhere: int, engines: EngineMemory | None
    ) -> LoadPlan:
        """Plans with what all engines take, where they are counted; else with what the models of this process do."""
        if engines is None:
            return plan(standings, self._limit, self._idle_s, now, elsewhere)
        n_bytes, are_running = engines.held_bytes(model.load_settings for model in self.models)
        # What is counted already takes no more.
        counted = [
            replace(model, bytes=0) if is_running or model.state in HOLDING else model
            for model, is_running in zip(standings, are_running, strict=True)
        ]
        return plan(counted, self._limit, self._idle_s, now, elsewhere + n_bytes, asks_others=True)

    @property
    def held_bytes(self) -> int:
        """Bytes that the models take which are loaded, or are being loaded or unloaded."""
        with self.lock:
            return sum(model.bytes for model in self.models if model.state in HOLDING)

    def _begin_load(self, model: ServedModel) -> None:
        engine = self._make(model.load_settings)
        model.begin_load(engine)
        if self._limit and model.bytes > self._limit:
            model.failed(f"it needs some {model.bytes} bytes, and COROSRV_MODEL_BYTES allows {self._limit}")
        else:
            log.info("model %s: loading", model.name)
            if self._engines is not None:
                self._engines.reserve(model.load_settings, model.bytes)
            waits.spawn("corosrv-load", self._load, model, engine)

    def _load(self, model: ServedModel, engine: Loadable) -> None:
        failure = _open(engine)
        with self.lock:
            # Otherwise it was unloaded meanwhile.
            is_wanted = model.engine is engine and model.state is ModelState.LOADING
            if is_wanted and failure:
                model.failed(failure)
            elif is_wanted:
                settings = model.load_settings
                model.loaded()
                if self._engines is not None:
                    self._engines.note(settings, model.bytes)
        if self._engines is not None and not (is_wanted and not failure):
            self._engines.give_up(model.load_settings)
        if is_wanted:
            log.info("model %s: %s", model.name, failure or "loaded")
        if failure or not is_wanted:
            waits.call_in_thread(engine.close)
        if failure and is_wanted:
            self._on_failed_load()
        self.wake()

    def _begin_download(self, model: ServedModel) -> None:
        assert self._make_download is not None
        download = self._make_download(model.settings)
        model.begin_download(download)
        waits.spawn("corosrv-download", self._download, model, download)

    def _download(self, model: ServedModel, download: HubDownload) -> None:
        settings, failure = _run(download)
        with self.lock:
            # Otherwise it was cancelled meanwhile.
            is_wanted = model.download is download and model.state is ModelState.DOWNLOADING
            if is_wanted and settings is not None:
                model.downloaded(settings)
            elif is_wanted:
                model.failed(failure)
        if is_wanted and failure:
            log.error("model %s: %s", model.name, failure)
        self.wake()

    def begin_unload(self, model: ServedModel) -> None:
        """Begins to unload a model that is loaded or loading; under the lock. Never waits."""
        model.begin_unload()
        waits.spawn("corosrv-unload", self._unload, model)

    def _unload(self, model: ServedModel) -> None:
        assert model.engine is not None
        waits.call_in_thread(model.engine.close)
        with self.lock:
            if model.state is ModelState.UNLOADING:
                model.unloaded()
        log.info("model %s: unloaded", model.name)
        self.wake()

    def close(self) -> None:
        """Unloads everything; waits for steps and loads in progress."""
        self.stop()
        with self.lock:
            for model in self.models:
                if model.state is ModelState.DOWNLOADING:
                    model.cancel_download()
            open_engines = [(model, model.engine) for model in self.models if model.engine is not None]
            for model, _ in open_engines:
                if model.state is not ModelState.UNLOADING:
                    model.begin_unload()
        for model, engine in open_engines:
            engine.close()
            with self.lock:
                if model.state is ModelState.UNLOADING:
                    model.unloaded()


def _open(engine: Loadable) -> str:
    """Opens the engine; returns why that failed, or nothing. Waits."""
    try:
        engine.open()
    except errors.CorosrvError as error:
        return str(error)
    except Exception as error:
        log.exception("the engine could not start")
        return f"the engine could not start: {type(error).__name__}"
    return ""


def _run(download: HubDownload) -> tuple[ModelSettings | None, str]:
    """Runs a download; returns the settings with its files, or why there are none. Waits."""
    try:
        return download.run(), ""
    except errors.CorosrvError as error:
        return None, str(error)
    except Exception as error:
        log.exception("a model could not be downloaded")
        return None, f"it could not be downloaded: {type(error).__name__}"
