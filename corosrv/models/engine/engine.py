"""The engine as a Worker: opens the decode loop, turns prompts into tokens, submits jobs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from corosrv.base import errors, waits
from corosrv.contracts.jobs import Adapter, AnyJob, Job, ModelCard, SlotFile, SlotState, State, Tokens
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.contracts.settings import ModelSettings, Settings
from corosrv.models.engine.binding import FINGERPRINT, ModelInfo, NativeEngine, Options, Task
from corosrv.models.engine.libllama import cpu_identity
from corosrv.models.engine.memory import DescriptorShortage, fit_model
from corosrv.models.engine.options import draft_options, model_card, native_options, with_verdict
from corosrv.models.engine.probe import Verdict, verdict
from corosrv.models.engine.reader import Reader
from corosrv.models.engine.slots import SlotKeeper, TaskNotes
from corosrv.models.engine.tasks import Adapters, TaskMaker, TaskPlacer, owner_of
from corosrv.models.engine.vocabulary import EngineVocabulary
from corosrv.models.loadable import LoadProgress
from corosrv.models.recording import RecordFile, RecordingHead, record_into

log = logging.getLogger("corosrv.engine")


@dataclass(frozen=True, slots=True)
class _LoadedParts:
    """The parts of an engine whose model is ready."""

    native: NativeEngine
    info: ModelInfo
    vocabulary: EngineVocabulary
    card: ModelCard
    keeper: SlotKeeper
    maker: TaskMaker
    placer: TaskPlacer


class EngineLife:
    """The states of an engine, from its making to its end, whether this process computes or another one."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._failure: str | None = None
        self._is_closed = False
        self._is_draining = False
        self._card: ModelCard | None = None  # once the model is ready

    @property
    def _is_of_parent(self) -> bool:
        """True after a fork: the engine serves the process that has made it."""
        return os.getpid() != self._pid

    @property
    def state(self) -> State:
        if self._failure is not None or self._is_of_parent:
            return State.FAILED
        if self._is_draining or self._is_closed:
            return State.DRAINING
        return State.STARTING if self._card is None else State.READY

    def check(self) -> None:
        """Raises the Unavailable that a job would meet now."""
        if self._is_closed or os.getpid() != self._pid:
            self._check_alive()
        if self._failure is not None:
            raise errors.ModelFailed(f"the model could not be loaded: {self._failure}")
        if self._is_draining:
            raise errors.ShuttingDown("the server is shutting down")
        if self._card is None:
            raise errors.Starting("the model is still loading")

    def _check_alive(self) -> None:
        if self._is_of_parent:
            raise errors.UsedAfterFork(
                "this engine was made before a fork() and serves the parent process only; make one in each process "
                "after forking (gunicorn: do not use --preload)"
            )
        if self._is_closed:
            raise errors.UsedAfterClose("the engine is closed; open another one")

    def models(self) -> tuple[ModelCard, ...]:
        return () if self._card is None else (self._card,)

    def card(self, model: str | None) -> ModelCard:
        self.check()
        assert self._card is not None
        return self._card

    def stop_accepting(self) -> None:
        """Refuses new jobs; those that were accepted go on."""
        self._is_draining = True


class Engine(EngineLife):
    """One model, decoded in a native thread of this process.

    `open` loads it and may be called from a greenlet, which lets others run, or a plain thread. Jobs may be submitted
    from any thread; each reader belongs to the thread that submitted. Not to be used across a fork.
    """

    def __init__(self, settings: ModelSettings | Settings) -> None:
        """Stores the settings, of which those of the first model count; nothing starts before `open`."""
        super().__init__()
        # Once the model is loaded, with what fits into memory.
        self.settings = settings = settings if isinstance(settings, ModelSettings) else settings.models[0]
        self._native: NativeEngine | None = None
        self._loaded: _LoadedParts | None = None
        self._adapters = Adapters(settings.adapters)
        self._notes = TaskNotes(settings.queue)
        self._shortage = DescriptorShortage()
        self._reads_since = 0.0
        self._recording: RecordFile | None = None
        self._is_draft_off = False  # it has failed
        self.verdict = Verdict.FAST  # of the trial that `open` has made

    def open(self) -> None:
        """Loads the model; waits until it is ready. Raises ModelFailed, and `state` is FAILED from then on."""
        try:
            self._open()
        except errors.CorosrvError as error:
            self._failure = str(error)
            self._close_recording()
            # Clients are not told where models lie; whoever reads the log has to be.
            log.error("the model cannot be served: %s (%s)", error, os.path.abspath(self.settings.model))
            raise errors.ModelFailed(self._failure) from error
        except BaseException as error:  # also a greenlet that is killed while it loads: the state has to tell
            self._failure = f"the engine could not start: {type(error).__name__}"
            raise

    def _open(self) -> None:
        began = time.monotonic()
        self._check_alive()
        asked = self.settings.ctx
        fitted = fit_model(self.settings)
        settings = self.settings = fitted.settings
        self._notes = TaskNotes(settings.queue + settings.slots)
        if fitted.words:
            log.info("memory for %s: %s", settings.names[0], fitted.words)
        options = native_options(settings, fitted.copy_bytes)
        self.verdict = verdict(options)
        if options.draft:
            self.verdict = max(self.verdict, verdict(draft_options(options)), key=list(Verdict).index)
        self._check_alive()  # closed while libllama was tried
        options = with_verdict(options, self.verdict)
        if settings.record:
            options = self._record(options)
        self._reads_since = time.monotonic()
        native = self._native = NativeEngine(options)
        # A copy of its own: close() takes the engine's away, and this wait has to hear of it.
        loaded = os.dup(native.fd)
        try:
            waits.wait_readable(loaded)
        finally:
            os.close(loaded)
        state, reason = native.state()
        if state != "ready":
            raise errors.ModelFailed(reason)
        model = self._look_at(native)
        _try_defaults(model)
        self._check_alive()  # closed while the template was tried
        self._loaded, self._card = model, model.card
        log.info(
            "engine ready in %.1f s, in process %d alone: %s, %d slots %s, %s",
            time.monotonic() - began, os.getpid(), self._loaded.card.id, self.settings.slots,
            self._loaded.info.room, self._loaded.info.kernels,
        )  # fmt: skip
        info = self._loaded.info
        if info.context <= info.context_train < asked:
            log.warning(
                "a context of %d tokens was asked for, and %s was trained for %d: its slots have %d "
                "(lower --ctx, or scale positions with --rope-scaling)",
                asked, self._loaded.card.id, info.context_train, info.context,
            )  # fmt: skip

    def _record(self, options: Options) -> Options:
        head = RecordingHead.describing(options, self.settings.names[0], FINGERPRINT, cpu_identity())
        recording = self._recording = record_into(self.settings.record, head)
        return msgspec.structs.replace(options, record_fd=recording.fd, record_bytes=self.settings.record_bytes)

    def _look_at(self, native: NativeEngine) -> _LoadedParts:
        settings, info = self.settings, native.info()
        vocabulary = EngineVocabulary(
            native, info, settings.template, settings.template_defaults, has_safe_template=settings.is_synthetic
        )
        card = model_card(settings, info, vocabulary)
        return _LoadedParts(
            native,
            info,
            vocabulary,
            card,
            SlotKeeper(native, settings, info, card.fingerprint),
            TaskMaker(vocabulary, self._adapters, settings.slots, settings.context_shift, settings.drafted_rows > 0),
            TaskPlacer(self._adapters, self._notes),
        )

    def _model(self) -> _LoadedParts:
        """Raises as `check` does."""
        self.check()
        assert self._loaded is not None
        return self._loaded

    def vocabulary(self, model: str | None) -> EngineVocabulary:
        return self._model().vocabulary

    @property
    def load_progress(self) -> LoadProgress:
        """The progress while the model is being loaded; what is tried before does not count."""
        if self._native is None or self._is_closed or self._is_of_parent:
            return LoadProgress()
        return LoadProgress.after(time.monotonic() - self._reads_since, self._native.loaded_part())

    @property
    def info(self) -> ModelInfo:
        """The model's properties. Raises Starting before it is loaded."""
        return self._model().info

    def submit(self, job: AnyJob) -> Reader:
        """Renders, tokenises and queues; a long prompt is read in the thread pool meanwhile.

        Raises Refused for what cannot be served, Unavailable for what cannot be served now.
        """
        model = self._model()
        return self._run(model, model.maker.make(job), job.terms.caller, isinstance(job, Job) and job.stream)

    def run(self, tasks: Sequence[Task], caller: str, is_streamed: bool) -> Reader:
        """Queues the tasks of one job of this caller, which TaskMaker has made. Raises as `submit` does."""
        return self._run(self._model(), tasks, caller, is_streamed)

    def _run(self, model: _LoadedParts, tasks: Sequence[Task], caller: str, is_streamed: bool) -> Reader:
        try:
            native = model.native.submit(model.placer.place(tasks, caller, is_streamed))
        except errors.InvalidGrammar as error:
            raise error.for_field(tasks[0].sampling.grammar_param) from None
        if native.fd < 0:
            self._shortage.count()
        if self._recording is not None:
            self._recording.tell(model.native.recording_trouble())
        if self.settings.model_draft and not self._is_draft_off:
            self._look_at_draft(model.native)
        return Reader(native, len(tasks))

    def _look_at_draft(self, native: NativeEngine) -> None:
        trouble = native.draft_trouble()
        self._is_draft_off = bool(trouble)
        if trouble:
            log.error("the draft model %s failed, and guesses no more: %s", self.settings.model_draft, trouble)

    def stats(self) -> DecodeStats | None:
        """Returns the counters as of the last step; None before the engine is open and after it is closed."""
        if self._native is None or self._is_closed or self._is_of_parent:
            return None
        return self._native.stats()

    def slots(self) -> tuple[SlotState, ...]:
        """Returns what each slot does, or did last, as of the last step; never waits for one. Raises as `check` does.

        A slot is a lane of the KV cache while something runs in it. Afterwards it shows its last task, and what that
        left lies in the prefix cache, which all slots share.
        """
        return self._notes.describe(self._model().native.slots(self.settings.slots))

    def save_slot(self, slot: int, path: str, caller: str = "") -> SlotFile:
        """Writes what the slot's last task left; see corosrv.contracts.jobs.HasSlots."""
        return self._model().keeper.save(slot, path, owner_of(caller))

    def restore_slot(self, slot: int, path: str, caller: str = "") -> SlotFile:
        """Reads a file back into this slot and the prefix cache."""
        return self._model().keeper.restore(slot, path, owner_of(caller))

    def erase_slot(self, slot: int, caller: str = "") -> int:
        """Forgets what the slot's last task left, and returns how many tokens that was."""
        return self._model().keeper.erase(slot, owner_of(caller))

    def adapters(self) -> tuple[Adapter, ...]:
        """Returns the LoRA adapters that were loaded with the model."""
        return self._adapters.list()

    def set_adapters(self, scales: Mapping[int, float]) -> None:
        """Sets the scales for jobs that name no adapters; adapters not listed are off.

        Raises Refused for an adapter that does not exist.
        """
        self._adapters.set(scales)

    def set_side_process(self, pidfd: int, share: float, itl_s: float, usual_s: float) -> None:
        """Stops a process while a step is computed; see NativeEngine.set_side_process. Raises as `check` does."""
        self._model().native.set_side_process(pidfd, share, itl_s, usual_s)

    def side_process_held(self) -> float:
        """Returns the seconds for which such processes were stopped. Raises as `check` does."""
        return self._model().native.side_process_held()

    def drain(self, message: str = "the server is shutting down") -> None:
        """Ends every job, waiting or running, with an error chunk of this message."""
        self.stop_accepting()
        if self._native is not None and not (self._is_closed or self._is_of_parent):
            self._native.drain(message)

    def close(self) -> None:
        """Ends every job and the decode thread; waits for the step in progress. Twice is harmless."""
        if self._is_closed or self._is_of_parent:
            return
        self._is_closed = True
        if self._native is not None:
            self._native.close()
        self._close_recording()

    def _close_recording(self) -> None:
        if self._recording is not None:
            self._recording.close()


def _try_defaults(model: _LoadedParts) -> None:
    """Begins an answer to a request that leaves its grammar and biases open. Raises ModelFailed if none can begin."""
    sampling = model.card.defaults.sampling()
    if not (sampling.grammar or sampling.logit_bias):
        return
    job = Job((Tokens((0,)),), max_tokens=1, sampling=sampling, share_prefix=False)
    try:
        model.native.submit(model.placer.place(model.maker.make(job), "", False)).close()
    except errors.Refused as error:
        raise errors.ModelFailed(
            f"the defaults of requests (their grammar or logit_bias) cannot be used: {error}"
        ) from None
