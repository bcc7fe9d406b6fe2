"""The models of one process as one Worker: routes jobs by model, loads what they need, unloads what nobody uses."""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from corosrv.base import errors
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs import Adapter, AnyJob, Chunk, ModelCard, Reader, SlotFile, SlotState, State, Vocabulary
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.contracts.settings import ModelSettings, Settings
from corosrv.models.fitting import gguf
from corosrv.models.keeper import EngineMemory, Keeper
from corosrv.models.loadable import Loadable
from corosrv.models.plan import ModelState, Standing
from corosrv.models.served import ServedModel, named_adapters

if TYPE_CHECKING:
    from corosrv.models.hub.download import HubDownload

_BEGINNING = (ModelState.DOWNLOADING, ModelState.LOADING)


class Watch(Protocol):
    """Tells whether the client of a waiting caller has left."""

    is_gone: bool

    def close(self) -> None: ...


class _NoWatch:
    """Watches nobody."""

    is_gone = False

    def close(self) -> None:
        pass


class ModelPool:
    """A Worker over one Loadable, such as an engine, for each model; see corosrv.contracts.jobs.Worker for the
    contract.

    Any thread may submit. Readers are the engines' own: once a job is taken, the pool is not asked again. A model is
    unloaded only when its readers and vocabularies are gone. Not to be used across a fork.
    """

    def __init__(
        self,
        settings: Settings,
        make: Callable[[ModelSettings], Loadable],
        watch: Callable[[Callable[[], None]], Watch] = lambda on_gone: _NoWatch(),
        memory_elsewhere: Callable[[], int] = lambda: 0,
        waits_for_first: Callable[[], bool] = lambda: False,
        make_download: Callable[[ModelSettings], HubDownload] | None = None,
        on_failed_load: Callable[[], None] = lambda: None,
        may_use: Callable[[Sequence[str]], bool] | None = None,
        engines: EngineMemory | None = None,
    ) -> None:
        """Keeps the settings and reads the heads of the model files; nothing starts before `start`.

        `make` makes what loads and runs one model. `watch` is asked to look after a caller that has to wait, and to
        call a function if the caller's client leaves. `memory_elsewhere`: the bytes of the budget that others hold.
        `waits_for_first`: tells whether requests wait for an only model's first load as for any other; else they are
        refused.
        `make_download`: makes the download of a model that is named on a hub. `on_failed_load`: called after each load
        that fails. `may_use`: tells of a model's names whether the request at hand may use it; if it may not, it is as
        if there were no such model. None: all may be used. `engines`: see Keeper.
        """
        self._keeper = Keeper(settings, make, memory_elsewhere, make_download, on_failed_load, engines)
        self._lock = self._keeper.lock
        self._models = self._keeper.models
        self._first = self._models[0]
        self._adapters = named_adapters(self._models)
        self._by_name = {name: model for model in self._models for name in model.names}
        self._by_name |= {name: model for name, (model, _) in self._adapters.items()}
        self._is_strict = settings.server.strict_model or len(self._models) > 1
        self._wait_s = settings.server.model_wait_s
        self._watch = watch
        self._may_use = may_use
        self._waits_for_first = waits_for_first if len(self._models) == 1 else lambda: True
        self._pid = os.getpid()
        self._is_draining = False
        self._is_closed = False

    @property
    def held_bytes(self) -> int:
        """Bytes that the models take which are loaded, or are being loaded or unloaded."""
        return self._keeper.held_bytes

    @property
    def is_loading(self) -> bool:
        """True while a model is loaded or unloaded, which close() waits for."""
        return any(model.state in (ModelState.LOADING, ModelState.UNLOADING) for model in self._models)

    def start(self) -> None:
        """Begins to load the first model; returns at once."""
        self._first.ask()
        self._keeper.start()

    # The Worker

    @property
    def state(self) -> State:
        """The state of the first model: a server is ready when that is."""
        if self._is_inherited or self._first.state is ModelState.FAILED:
            return State.FAILED
        if self._is_draining or self._is_closed:
            return State.DRAINING
        return State.READY if self._first.n_loads else State.STARTING

    def check(self) -> None:
        """Raises the Unavailable that a job for the first model would meet now."""
        self._check_open()
        first = self._first
        if first.state is ModelState.FAILED:
            raise errors.ModelFailed(f"the model could not be loaded: {first.failure}")
        if not first.n_loads:
            raise errors.Starting(first.loading_words, retry_after=first.retry_after())

    @property
    def _is_inherited(self) -> bool:
        """This process is a fork of the one that made the pool. Its lock may be held by a thread that is not here."""
        return os.getpid() != self._pid

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise errors.UsedAfterFork(
                "these models were made before a fork() and serve the parent process only; make others in each process "
                "after forking (gunicorn: do not use --preload)"
            )
        if self._is_closed:
            raise errors.UsedAfterClose("the models are closed; make another pool")
        if self._is_draining:
            raise errors.ShuttingDown("the server is shutting down")

    @property
    def unloadable(self) -> str:
        """Returns why none of the models could be loaded; empty when one was, is being loaded, or nobody asked yet."""
        coming = (ModelState.DOWNLOADING, ModelState.LOADING)
        if any(model.n_loads or model.state in coming for model in self._models):
            return ""
        return self._first.failure

    def models(self) -> tuple[ModelCard, ...]:
        """Returns every model that may be used, loaded or not, and behind them their LoRA adapters."""
        cards = [model.card for model in self._models if self._is_usable(model)]
        cards += [
            _of_adapter(model.card, name) for name, (model, _) in self._adapters.items() if self._is_usable(model, name)
        ]
        return tuple(cards)

    def card(self, model: str | None) -> ModelCard:
        """Returns the model's card. Waits while it is loaded; raises ModelNotFound or Unavailable."""
        self._check_open()
        served = self._route(model)
        if served.state is not ModelState.READY:
            with self._using(model):
                pass
        return _of_adapter(served.card, model) if model and model in self._adapters else served.card

    def known_card(self, model: str | None) -> ModelCard:
        """Returns the model's card, of one that was never loaded by what its file's head says; loads none.

        Waits while that is read for the first time; raises ModelNotFound or Unavailable.
        """
        self._check_open()
        served = self._route(model)
        if served.texts is None and not served.n_loads:
            served.texts = call_in_thread(gguf.read_texts, served.settings.model)
        return _of_adapter(served.known_card, model) if model and model in self._adapters else served.known_card

    def vocabulary(self, model: str | None) -> Vocabulary:
        """Returns the model's vocabulary, which keeps it loaded for as long as it lives. Waits and raises as `card`."""
        served = self._using(model)
        with served as engine:
            vocabulary = copy.copy(engine.vocabulary(None))
            with self._lock:
                served.uses.until_dropped(vocabulary)
            return vocabulary

    def submit(self, job: AnyJob) -> Reader[Chunk]:
        """Waits while the model is loaded, then as its engine does. Raises Refused or Unavailable.

        A job that names an adapter gets it at scale 1, and no other.
        """
        served = self._using(job.model)
        with served as engine:
            reader = engine.submit(self._with_adapter(job) if job.model in self._adapters else job)
            with self._lock:
                served.uses.until_dropped(reader)
            return reader

    def _with_adapter(self, job: AnyJob) -> AnyJob:
        served, id = self._adapters[job.model or ""]
        if job.lora is not None:
            words = f"'{job.model}' is a LoRA adapter, which the request gets alone: name the model '{served.name}'"
            raise errors.Refused(f"lora: {words} to choose scales", "lora")
        return replace(job, lora=((id, 1.0),))

    # As llama-server has it

    def slots(self, model: str | None) -> tuple[SlotState, ...]:
        self._check_open()
        served = self._route(model)
        engine = served.engine if served.state is ModelState.READY else None
        return () if engine is None else engine.slots()

    def save_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        with self._using(model) as engine:
            return engine.save_slot(slot, path, caller)

    def restore_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        with self._using(model) as engine:
            return engine.restore_slot(slot, path, caller)

    def erase_slot(self, model: str | None, slot: int, caller: str = "") -> int:
        with self._using(model) as engine:
            return engine.erase_slot(slot, caller)

    def adapters(self, model: str | None) -> tuple[Adapter, ...]:
        self._check_open()
        served = self._route(model)
        if served.state is ModelState.READY:
            with self._using(model) as engine:
                return engine.adapters()
        files = enumerate(served.settings.adapters)
        return tuple(Adapter(number, Path(path).name, scale) for number, (path, scale) in files)

    def set_adapters(self, model: str | None, scales: Mapping[int, float]) -> None:
        with self._using(model) as engine:
            engine.set_adapters(scales)

    # From a name to an engine

    def _route(self, name: str | None) -> ServedModel:
        model = self._first if name is None else self._by_name.get(name)
        if model is None and not self._is_strict:
            model = self._first
        if self._may_use is not None and model is not None and not self._is_usable(model, name):
            # Whoever names no model gets the first that it may use.
            model = None if name is not None else next(filter(self._is_usable, self._models), None)
        if model is None:
            raise errors.ModelNotFound(name or "")
        return model

    def _is_usable(self, model: ServedModel, name: str | None = None) -> bool:
        """Tells whether a model may be used, by a name that may be an adapter's: allowed by itself, or by its model."""
        if self._may_use is None:
            return True
        return self._may_use((*model.names, name) if name and name in self._adapters else model.names)

    def _using(self, name: str | None) -> ServedModel:
        """Returns the loaded model, which stays so until the end of a `with` block. Waits for it."""
        self._check_open()
        model = self._route(name)
        if not self._try_use(model):
            self._wait_for(model)
        return model

    def _try_use(self, model: ServedModel) -> bool:
        with self._lock:
            is_ready = model.state is ModelState.READY
            if is_ready:
                model.uses.begin()
            return is_ready

    def _wait_for(self, model: ServedModel) -> None:
        """Returns when the model is loaded, and counted as used. Waits; raises Unavailable."""
        if not self._waits_for_first() and model.state in _BEGINNING:
            self.check()  # during the only model's first load requests are refused, as /health says
        deadline = time.monotonic() + self._wait_s
        with self._lock:
            model.check_failed()
            wakeup = model.join()
        watch = self._watch(wakeup.set)
        try:
            while not self._try_use(model):
                self._check_open()
                if watch.is_gone:
                    raise errors.ClientGone(f"the client left while the model '{model.name}' was being loaded")
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    words = f"the model '{model.name}' was not loaded within {self._wait_s:g} s"
                    raise errors.Starting(words, has_waited=True, retry_after=model.retry_after())
                with self._lock:
                    model.check_failed()
                    model.want()
                self._keeper.wake()
                wakeup.wait(seconds)
        finally:
            watch.close()
            with self._lock:
                model.leave(wakeup)

    # Loading and unloading

    def load(self, name: str) -> None:
        """Begins to load a model as soon as there is room; returns at once. Raises ModelNotFound or Unavailable."""
        self._check_open()
        with self._lock:
            self._usable(name).ask()
        self._keeper.wake()

    def unload(self, name: str) -> None:
        """Begins to unload a model, also one that is still loading; returns at once.

        Raises ModelNotFound, and Refused for a model that is not loaded, or that jobs or waiting requests need.
        """
        self._check_open()
        with self._lock:
            model = self._usable(name)
            if model.state is ModelState.DOWNLOADING and not model.is_used:
                model.cancel_download()
                return
            if model.state not in (ModelState.READY, *_BEGINNING):
                raise errors.Refused(f"the model '{name}' is not loaded", "model", "model_not_loaded")
            if model.is_used:
                raise errors.Refused(f"the model '{name}' is in use", "model", "model_in_use")
            self._keeper.begin_unload(model)

    def release(self, name: str) -> None:
        """Begins to unload a model that nobody uses, because another process needs the room. Never waits."""
        with self._lock:
            model = self._by_name[name]
            if model.standing.is_idle and not self._is_closed:
                self._keeper.begin_unload(model)

    def _usable(self, name: str) -> ServedModel:
        model = self._model_named(name)
        if not self._is_usable(model, name):
            raise errors.ModelNotFound(name)
        return model

    def _model_named(self, name: str) -> ServedModel:
        if name not in self._by_name:
            raise errors.ModelNotFound(name)
        return self._by_name[name]

    def standing(self, name: str) -> Standing:
        """Returns a model's state, whether it is used, and since when it is idle. Raises ModelNotFound."""
        with self._lock:
            return self._model_named(name).standing

    def facts(self, name: str) -> gguf.Facts | None:
        """Returns what the head of a model's file says; None where there is no file. Raises ModelNotFound."""
        with self._lock:
            return self._model_named(name).facts

    # Numbers

    def names(self) -> frozenset[str]:
        """Returns the names of all models, aliases and adapters among them, loaded or not."""
        return frozenset(self._by_name)

    def stats_of(self, name: str) -> DecodeStats | None:
        """Returns a model's counters; None while it is not loaded, and for a name that is not known."""
        if self._is_inherited or name not in self._by_name:
            return None
        with self._lock:
            return self._by_name[name].stats()

    def stats(self) -> DecodeStats | None:
        """Returns the first model's counters; None while it is not loaded."""
        return self.model_stats().get(self._first.name)

    def model_stats(self) -> Mapping[str, DecodeStats]:
        """Returns the counters of each model that is loaded."""
        if self._is_inherited:
            return {}
        with self._lock:
            all_stats = {model.name: model.stats() for model in self._models}
        return {name: stats for name, stats in all_stats.items() if stats is not None}

    def slots_now(self) -> Mapping[str, tuple[SlotState, ...]]:
        """Returns the slots of each model that is loaded; loads none, and never waits for a step."""
        found = {}
        for model in () if self._is_inherited else self._models:
            with self._lock, contextlib.suppress(errors.CorosrvError):  # its engine is being closed
                if model.state is ModelState.READY and model.engine is not None:
                    found[model.name] = model.engine.slots()
        return found

    def adapters_ready(self) -> tuple[str, ...]:
        """Returns the names of the LoRA adapters of all models that are loaded."""
        return tuple(name for name, (model, _) in self._adapters.items() if model.state is ModelState.READY)

    def model_states(self) -> Mapping[str, str]:
        return {model.name: model.state.value for model in self._models}

    # The end

    def stop_accepting(self) -> None:
        """Refuses new jobs, also those that wait for a model; jobs that were taken go on."""
        self._is_draining = True
        if not self._is_inherited:
            self._keeper.stop()

    def drain(self, message: str = "the server is shutting down") -> None:
        """Ends every job, waiting or running, with an error chunk of this message."""
        self.stop_accepting()
        if self._is_inherited:
            return
        with self._lock:
            engines = [model.engine for model in self._models if model.state is ModelState.READY]
            for engine in filter(None, engines):
                engine.drain(message)

    def close(self) -> None:
        """Ends every job, and unloads every model; waits for steps and loads in progress. Twice is harmless."""
        if self._is_closed or self._is_inherited:
            return
        self._is_closed = True
        self._keeper.close()


def _of_adapter(model: ModelCard, name: str) -> ModelCard:
    """Makes the card of an adapter of a model."""
    return replace(model, id=name, aliases=(), parent=model.id)
