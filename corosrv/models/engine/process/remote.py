"""An engine that runs in a process of its own, as a Loadable: what a front has of it.

The front renders, compiles and tokenises; the engine's process computes. When that dies, another one is started and
every answer goes on where it was.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gevent
from gevent.event import AsyncResult, Event
from gevent.hub import get_hub

from corosrv.base import errors
from corosrv.base.run_dir import default_path, open_run_dir
from corosrv.base.waits import call_in_thread, own_hub
from corosrv.contracts.jobs import Adapter, AnyJob, Job, SlotFile, SlotState
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine.binding import ModelInfo, NativeVocabulary
from corosrv.models.engine.engine import EngineLife
from corosrv.models.engine.options import model_card, native_options
from corosrv.models.engine.process.connector import EngineConnector, EngineLink, greet
from corosrv.models.engine.process.jobs import RemoteJob, RemoteReader, tells_state
from corosrv.models.engine.process.ledger import JobLedger
from corosrv.models.engine.process.messages import (
    AdapterScales,
    BanTasks,
    ChunksRead,
    EngineFailed,
    EngineLoaded,
    EngineLoading,
    EngineRelease,
    FromFront,
    LoopCounters,
    SlotAnswer,
    SlotQuestion,
    SlotReply,
    TaskChunks,
    TasksAccepted,
    TasksDeclined,
    ToFront,
)
from corosrv.models.engine.tasks import Adapters, TaskMaker
from corosrv.models.engine.vocabulary import EngineVocabulary
from corosrv.models.loadable import LoadProgress

log = logging.getLogger("corosrv.engine")

SHUTTING_DOWN = "server_shutting_down"  # the code of an answer that a drain ends
RECOVERY = 120.0  # seconds that a new job waits for an engine that is started again
QUESTION = 60.0  # seconds in which a question about slots is answered
HUNG = 30.0  # seconds without a word, or without a step while something runs, after which the process is ended
_LOOK = 1.0  # seconds between two looks at that
_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)  # seconds before an engine is started again; the last one for all later ones
_BIRTHS = 4  # processes that may end before they have greeted


class RemoteEngine(EngineLife):
    """One model, decoded in a process that several fronts share. Belongs to the thread of the hub that opens it."""

    def __init__(
        self,
        settings: ModelSettings,
        run_dir: str = "",
        take_reserved: Callable[[str], int | None] = lambda digest: None,
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        """`run_dir`: see corosrv.base.run_dir. `take_reserved`: see EngineConnector. `on_release`: called where the
        memory is needed for another model. Nothing starts before `open`."""
        super().__init__()
        self._take_reserved = take_reserved
        self._on_release = on_release
        self._settings = settings
        self._run_dir = run_dir
        self._hub: Any = None
        self._connector: EngineConnector | None = None
        self._link: EngineLink | None = None
        self._is_up = Event()  # the link is there, and its engine has loaded the model
        self._loading: AsyncResult[EngineLoaded] = AsyncResult()
        self._loaded: EngineLoaded | None = None
        self._vocabulary: EngineVocabulary | None = None
        self._native: NativeVocabulary | None = None
        self._maker: TaskMaker | None = None
        self._stats: DecodeStats | None = None
        self._scales: AdapterScales | None = None  # as somebody has set them, at any front
        self._ledger = JobLedger(self._send)
        self._questions: dict[int, AsyncResult[SlotAnswer]] = {}
        self._numbers = itertools.count()
        self.n_restarts = 0
        self.load_progress = LoadProgress()  # while the process loads the model

    # Loading

    def open(self) -> None:
        """Connects to the engine's process, and starts it if need be; waits until the model is ready.

        Raises ModelFailed, and `state` is FAILED from then on.
        """
        self._hub = get_hub()
        try:
            gevent.spawn(self._watch)
            self._connector = EngineConnector(
                self._settings, open_run_dir(self._run_dir or default_path()), self._take_reserved
            )
            self._loaded = loaded = self._connect()
            self._settings = settings = replace(self._settings, slots=loaded.slots, ctx=loaded.info.context)
            self._native = call_in_thread(NativeVocabulary, native_options(settings, 0))
            self._vocabulary = EngineVocabulary(
                self._native,
                loaded.info,
                settings.template,
                settings.template_defaults,
                has_safe_template=settings.is_synthetic,
            )
            self._maker = TaskMaker(
                self._vocabulary,
                Adapters(settings.adapters),
                settings.slots,
                settings.context_shift,
                settings.drafted_rows > 0,
            )
            self._card = replace(model_card(settings, loaded.info, self._vocabulary), created=loaded.created)
        except errors.CorosrvError as error:
            self._failure = str(error)
            raise errors.ModelFailed(self._failure) from error
        except BaseException as error:
            self._failure = f"the engine could not be reached: {type(error).__name__}"
            raise

    def _connect(self) -> EngineLoaded:
        """Connects, and waits until the model is loaded. Raises ModelFailed."""
        assert self._connector is not None
        for number in range(_BIRTHS):
            if number:
                gevent.sleep(_PAUSES[number])
            self._check_alive()
            if (link := greet(self._connector)) is not None:
                break
        else:
            raise errors.ModelFailed("the engine's process ends before it serves; its log says why")
        if self._is_closed:  # while it waited for the greeting
            link.close()
            self._check_alive()
        self._link = link
        self.load_progress = LoadProgress()
        self._loading = AsyncResult()
        gevent.spawn(self._receive, link)
        try:
            loaded: EngineLoaded = self._loading.get()
        except BaseException:
            if self._link is link:
                self._link = None
            link.close()  # a process that could not load the model ends once no front holds on to it
            raise
        return loaded

    @property
    def is_up(self) -> bool:
        """Returns whether the process has loaded the model, which fronts are told one after the other."""
        return bool(self._is_up.is_set())

    @property
    def is_recovering(self) -> bool:
        """Returns whether the engine was lost, and answers wait for another one."""
        return self._card is not None and not self._is_up.is_set()

    @property
    def pid(self) -> int | None:
        """The engine's process; None while there is none."""
        return None if self._link is None else self._link.pid

    # What the process says

    def _receive(self, link: EngineLink) -> None:
        try:
            while (message := link.receive()) is not None:
                self._handle(message)
        except errors.WireError as fault:
            log.error("model %s: its engine's process was cut off: %s", self._name, fault)
        except Exception:
            log.exception("model %s: a message of its engine's process could not be handled", self._name)
        finally:
            link.close()
            self._lose(link)

    def _handle(self, message: ToFront) -> None:
        if isinstance(message, TaskChunks):
            self._ledger.add(message.by_job)
        elif isinstance(message, LoopCounters):
            self._stats = message.stats
        elif isinstance(message, (TasksAccepted, TasksDeclined)):
            self._ledger.answer(message)
        elif isinstance(message, SlotReply):
            self._answer_question(message)
        elif isinstance(message, EngineLoading):
            self.load_progress = message.progress
        elif isinstance(message, EngineLoaded):
            self._stats = message.stats
            # What engines have died of at this front, no other one is to send.
            for fingerprint, seconds in self._ledger.suspects.bans(time.monotonic()).items():
                self._send(BanTasks(fingerprint, seconds))
            if self._scales is not None:
                self._send(self._scales)
            self._ledger.resume_all(message.info.context)  # before new ones are sent, which may take their places
            self._is_up.set()
            self._loading.set(message)
        elif isinstance(message, EngineRelease):
            self._on_release()
        elif isinstance(message, BanTasks):
            self._ledger.suspects.ban(message.fingerprint, message.seconds, time.monotonic())
        elif isinstance(message, AdapterScales):
            if self._scales is None or message.number > self._scales.number:
                self._scales = message
        elif isinstance(message, EngineFailed):
            self._loading.set_exception(errors.ModelFailed(message.reason))

    def _answer_question(self, answer: SlotReply) -> None:
        if (waiting := self._questions.pop(answer.id, None)) is not None:
            if answer.fault is None:
                waiting.set(answer.value)
            else:
                waiting.set_exception(answer.fault.error())

    @property
    def _name(self) -> str:
        return self._settings.names[0]

    # Its end, and what follows

    def _lose(self, link: EngineLink) -> None:
        """Takes note that a connection has ended, and sees to it that another one follows."""
        if link is not self._link:
            return
        was_up = self._is_up.is_set()
        self._link = None
        self._is_up.clear()
        self._fail_questions("the engine was lost; try again")
        if not self._loading.ready():
            self._loading.set_exception(errors.ModelFailed("the engine's process died while it loaded the model"))
        if self._is_closed or not was_up:
            return
        log.error(
            "model %s: its engine (process %d) is gone; %d answers wait for another one",
            self._name,
            link.pid,
            len(self._ledger.jobs),
        )
        if record := self._settings.record:
            log.error(
                "model %s: what reached it is in %s, to be kept as %s.crashed-%d", self._name, record, record, link.pid
            )
        self._look_for_cause(link.pid)
        gevent.spawn(self._recover)

    def _look_for_cause(self, pid: int) -> None:
        """Finds out whether the engine has crashed, and ends the request that has done it, if it is known which one."""
        assert self._connector is not None
        fault = self._connector.fault_of(pid)  # empty where somebody has killed it
        if fault:
            log.error("model %s: how its engine crashed is in %s", self._name, fault)
        if self._ledger.note_loss(has_crashed=bool(fault)) is not None:
            log.error("model %s: a request has ended three engines, and is refused for ten minutes", self._name)

    def _recover(self) -> None:
        """Connects to an engine again, and lets it resume every answer. Waits."""
        began = time.monotonic()
        for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
            gevent.sleep(pause)
            if self._is_closed:
                return
            try:
                self._connect()
                break
            except errors.CorosrvError as error:
                log.error("model %s: its engine could not be started again: %s", self._name, error)
                if time.monotonic() - began > RECOVERY or self._is_draining:
                    self._ledger.fail_all(f"the engine was lost, and could not be started again: {error}")
        self.n_restarts += 1
        log.warning(
            "model %s: its engine is back after %.1f s; %d answers go on",
            self._name,
            time.monotonic() - began,
            len(self._ledger.jobs),
        )

    def _fail_questions(self, message: str) -> None:
        for question in self._questions.values():
            question.set_exception(errors.Unavailable(message))
        self._questions.clear()

    def _watch(self) -> None:
        """Ends a process that says nothing, or makes no step while something runs. Looks, not seconds, are counted: a
        front that was paused itself has not looked."""
        while not self._is_closed:
            gevent.sleep(_LOOK)
            if (link := self._link) is None:
                continue
            # Nothing is stepped while the model loads.
            if link.count_look(self._stats if self._is_up.is_set() else None) * _LOOK > HUNG:
                log.error("model %s: its engine (process %d) hangs, and is ended", self._name, link.pid)
                link.kill()

    # What it is asked

    def _send(self, message: FromFront) -> None:
        if self._link is not None:
            self._link.send(message)

    def submit(self, job: AnyJob) -> RemoteReader:
        """Renders, tokenises and queues. Waits until the engine's process has taken it, for another one if need be.

        Raises Refused for what cannot be served, Unavailable for what cannot be served now.
        """
        self.check()
        if own_hub() is not self._hub:
            raise errors.WrongThread("an engine in another process takes jobs in the thread that opened it")
        assert self._maker is not None
        tasks = [tells_state(task) for task in self._maker.make(job)]
        number = next(self._numbers)
        reader = RemoteReader(
            lambda: self._ledger.cancel(number),
            lambda: self._ledger.end_thoughts(number),
            lambda n_bytes: self._send(ChunksRead(number, n_bytes)),
            lambda: self._ledger.forget(number),
            lambda: self._hub.loop.run_callback_threadsafe(self._ledger.forget, number),
        )
        remote = RemoteJob(number, tasks, job.terms.caller, isinstance(job, Job) and job.stream, reader)
        if self._ledger.suspects.is_banned(remote):
            raise errors.EngineGone("a request like this one has ended the engine three times")
        if not self._is_up.wait(RECOVERY):
            raise errors.Unavailable("the engine is being started again; try again")
        self.check()
        self._ledger.submit(remote, tasks)
        return reader

    def _ask(self, action: str, **arguments: Any) -> SlotAnswer:
        """Asks the engine's process; waits. Raises what it raises, and Unavailable where it gives no answer."""
        self.check()
        id = next(self._numbers)
        waiting = self._questions[id] = AsyncResult()
        self._send(SlotQuestion(id, action, **arguments))
        try:
            answer: SlotAnswer = waiting.get(timeout=QUESTION)
            return answer
        except gevent.Timeout:
            raise errors.Unavailable("the engine gave no answer in time; try again") from None
        finally:
            self._questions.pop(id, None)

    def vocabulary(self, model: str | None) -> EngineVocabulary:
        self.check()
        assert self._vocabulary is not None
        return self._vocabulary

    @property
    def info(self) -> ModelInfo:
        """The model's properties. Raises Starting before it is loaded."""
        if self._loaded is None:
            raise errors.Starting("the model is still loading")
        return self._loaded.info

    def stats(self) -> DecodeStats | None:
        """Returns the counters that the engine's process told last: those of all fronts together."""
        return None if self._is_closed or self._is_of_parent else self._stats

    def slots(self) -> tuple[SlotState, ...]:
        return tuple(self._ask("slots").slots)

    def save_slot(self, slot: int, path: str, caller: str = "") -> SlotFile:
        answer = self._ask("save_slot", slot=slot, path=os.path.abspath(path), caller=caller)
        return SlotFile(answer.n_tokens, answer.n_bytes)

    def restore_slot(self, slot: int, path: str, caller: str = "") -> SlotFile:
        answer = self._ask("restore_slot", slot=slot, path=os.path.abspath(path), caller=caller)
        return SlotFile(answer.n_tokens, answer.n_bytes)

    def erase_slot(self, slot: int, caller: str = "") -> int:
        return self._ask("erase_slot", slot=slot, caller=caller).n_tokens

    def adapters(self) -> tuple[Adapter, ...]:
        return tuple(self._ask("adapters").adapters)

    def set_adapters(self, scales: Mapping[int, float]) -> None:
        self._ask("set_adapters", scales=dict(scales))

    def set_side_process(self, pidfd: int, share: float, itl_s: float, usual_s: float) -> None:
        """Does nothing: an encoder of images is not stopped during the steps of another process."""

    def side_process_held(self) -> float:
        return 0.0

    # The end

    def drain(self, message: str = "the server is shutting down") -> None:
        """Ends every job of this front, waiting or running, with an error chunk of this message."""
        self.stop_accepting()
        self._ledger.fail_all(message, SHUTTING_DOWN)

    def close(self) -> None:
        """Leaves the engine's process, and ends this front's jobs. Any thread; twice is harmless."""
        if self._is_closed or self._is_of_parent:
            return
        self._is_closed = True
        if self._hub is None:
            return
        if own_hub() is self._hub:
            self._leave()
        else:
            self._hub.loop.run_callback_threadsafe(self._leave)

    def _leave(self) -> None:
        self._ledger.fail_all("the engine is closed")
        self._fail_questions("the engine is closed")
        if not self._loading.ready():
            self._loading.set_exception(errors.UsedAfterClose("the engine was closed while its model was loaded"))
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._is_up.set()  # whoever waits finds it closed
