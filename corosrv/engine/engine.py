"""The engine as a Worker: opens the decode loop, turns prompts into tokens, submits jobs."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from corosrv import errors
from corosrv.engine import probe, waits
from corosrv.engine.adapters import Adapters
from corosrv.engine.binding import (
    FINGERPRINT,
    GrammarLimits,
    Kind,
    ModelInfo,
    NativeEngine,
    Options,
    Synthetic,
    Task,
)
from corosrv.engine.cpu import physical_cores
from corosrv.engine.marks import Piece
from corosrv.engine.reader import Reader
from corosrv.engine.slot_keeper import SlotKeeper
from corosrv.engine.slots import TaskNotes
from corosrv.engine.traits import Traits
from corosrv.engine.vocabulary import EngineVocabulary
from corosrv.jobs import Adapter, AnyJob, EmbedJob, Job, ModelCard, Prompt, RerankJob, SlotFile, SlotState, State
from corosrv.settings import Settings
from corosrv.stats import DecodeStats

log = logging.getLogger("corosrv.engine")

MAX_STOP_BYTES = 256
MAX_BIASED_CHARS = 256
MAX_BIASES = 2048  # once texts are tokens


class Engine:
    """One model, decoded in a native thread of this process.

    `open` loads it and may be called from a greenlet, which lets others run, or a plain thread. Jobs may be submitted
    from any thread; each reader belongs to the thread that submitted. Not to be used across a fork.
    """

    def __init__(self, settings: Settings) -> None:
        """Only remembers the settings; nothing starts before `open`."""
        self._settings = settings
        self._pid = os.getpid()
        self._native: NativeEngine | None = None
        self._info: ModelInfo | None = None
        self._vocabulary: EngineVocabulary | None = None
        self._card: ModelCard | None = None
        self._adapters = Adapters(settings.adapters)
        self._keeper: SlotKeeper | None = None
        self._notes = TaskNotes(settings.queue + settings.slots)
        self._failure: str | None = None
        self._is_closed = False
        self._is_draining = False

    def open(self) -> None:
        """Loads the model; waits until it is ready. Raises ModelFailed, and `state` is FAILED from then on."""
        try:
            self._open()
        except errors.CorosrvError as error:
            self._failure = str(error)
            # Clients are not told where models lie; whoever reads the log has to be.
            log.error("the model cannot be served: %s (%s)", error, os.path.abspath(self._settings.model))
            raise errors.ModelFailed(self._failure) from error
        except BaseException as error:
            self._failure = f"the engine could not start: {type(error).__name__}"
            raise

    def _open(self) -> None:
        began = time.monotonic()
        self._check_alive()
        options = self._options()
        self._check_alive()  # closed while libllama was tried
        native = NativeEngine(options)
        self._native = native
        # A copy of its own: close() takes the engine's away, and this wait has to hear of it.
        loaded = os.dup(native.fd)
        try:
            waits.wait_readable(loaded)
        finally:
            os.close(loaded)
        state, reason = native.state()
        if state != "ready":
            raise errors.ModelFailed(reason)
        info = native.info()
        settings = self._settings
        self._vocabulary = EngineVocabulary(native, info, settings.template, settings.reasoning != "off")
        self._card = _model_card(settings, info, self._vocabulary.traits)
        self._keeper = SlotKeeper(native, settings, info, self._card.fingerprint)
        self._info = info
        log.info(
            "engine ready in %.1f s, in process %d alone: %s, %d slots of %d tokens, %s",
            time.monotonic() - began, os.getpid(), self._card.id, self._settings.slots, info.context, info.kernels,
        )  # fmt: skip

    def _options(self) -> Options:
        settings = self._settings
        synthetic = Synthetic(**settings.synthetic_options) if settings.is_synthetic else None  # type: ignore[arg-type]
        is_safe = synthetic is None and os.path.isfile(settings.model) and (
            probe.verdict(settings.model) is probe.Verdict.SAFE
        )  # fmt: skip
        return Options(
            model=settings.model,
            synthetic=synthetic,
            context=settings.ctx,
            slots=settings.slots,
            queue=settings.queue,
            tasks_of_owner=settings.queue_per_key,
            threads=settings.threads or physical_cores(),
            step_ms=settings.step_ms,
            reader_bytes=settings.reader_bytes,
            cache_bytes=settings.cache_bytes,
            deterministic=settings.deterministic,
            safe_load=is_safe,
            pooling=settings.pooling,
            adapters=tuple(path for path, _ in settings.adapters),
            kernels=settings.kernels,
            queue_s=settings.queue_timeout_s,
            stall_s=settings.stall_timeout_s,
            grammars=GrammarLimits(
                settings.grammar_bytes, settings.grammar_depth, settings.grammar_rules,
                settings.grammar_repetitions, settings.grammar_elements, settings.grammar_token_ms,
            ),
        )  # fmt: skip

    @property
    def state(self) -> State:
        if self._failure is not None or os.getpid() != self._pid:
            return State.FAILED
        if self._is_draining or self._is_closed:
            return State.DRAINING
        return State.READY if self._info is not None else State.STARTING

    def check(self) -> None:
        """Raises the Unavailable that a job would meet now."""
        self._check_alive()
        if self._failure is not None:
            raise errors.ModelFailed(f"the model could not be loaded: {self._failure}")
        if self._is_draining:
            raise errors.ShuttingDown("the server is shutting down")
        if self._info is None:
            raise errors.Starting("the model is still loading")

    def _check_alive(self) -> None:
        if os.getpid() != self._pid:
            raise errors.UsedAfterFork(
                "this engine was made before a fork() and serves the parent process only; make one in each process "
                "after forking (gunicorn: do not use --preload)"
            )
        if self._is_closed:
            raise errors.UsedAfterClose("the engine is closed; open another one")

    def models(self) -> tuple[ModelCard, ...]:
        return () if self._card is None else (self._card,)

    def card(self, model: str | None) -> ModelCard:
        """The model. Raises ModelNotFound when names are strict and this is none of its."""
        self.check()
        self._check_model(model)
        assert self._card is not None
        return self._card

    def vocabulary(self, model: str | None) -> EngineVocabulary:
        self.card(model)
        assert self._vocabulary is not None
        return self._vocabulary

    @property
    def info(self) -> ModelInfo:
        """What the model is. Raises Starting before it is loaded."""
        self.check()
        assert self._info is not None
        return self._info

    def submit(self, job: AnyJob) -> Reader:
        """Renders, tokenises and queues; a long prompt is read in the thread pool meanwhile.

        Raises Refused for what cannot be served, Unavailable for what cannot be served now.
        """
        self.card(job.model)
        if isinstance(job, RerankJob):
            prompts = self.vocabulary(job.model).encode_pairs(job.query, job.documents)
            tasks = [
                Task(tokens, kind=Kind.RANK, adapter_scales=self._adapters.scales(None), id=self._notes.number())
                for tokens in prompts
            ]
            return self._submit(tasks, prompts)
        if isinstance(job, EmbedJob):
            prompts = self.vocabulary(job.model).encode_inputs(job.prompts)
            scales = self._adapters.scales(None)
            tasks = [
                Task(
                    tokens,
                    kind=Kind.EMBED,
                    pools=job.pooling,
                    normalize=job.normalize,
                    adapter_scales=scales,
                    id=self._notes.number(),
                )
                for tokens in prompts
            ]
            return self._submit(tasks, prompts)
        return self._submit(*self._generations(job))

    def _submit(self, tasks: Sequence[Task], prompts: Sequence[Sequence[int]]) -> Reader:
        assert self._native is not None
        return Reader(self._native.submit(tasks), len(tasks), tuple(map(len, prompts)))

    def _generations(self, job: Job) -> tuple[list[Task], list[Sequence[int]]]:
        """A task for each answer, and the prompts. Raises Refused."""
        if job.context_shift:
            raise errors.NotSupported("context_shift: a full context ends an answer here", "context_shift")
        if not -1 <= job.slot < self._settings.slots:
            there_are = f"they are numbered from 0 to {self._settings.slots - 1}"
            raise errors.Refused(f"id_slot: there is no slot {job.slot}: {there_are}", "id_slot")
        vocabulary = self.vocabulary(job.model)
        prompts = [vocabulary.encode(prompt, number, len(job.prompts)) for number, prompt in enumerate(job.prompts)]
        seed = job.sampling.seed if job.sampling.seed is not None else secrets.randbits(32)
        stops = [stop.encode() for stop in job.stop]
        if any(len(stop) > MAX_STOP_BYTES for stop in stops):
            raise errors.Refused(f"a stop string has at most {MAX_STOP_BYTES} bytes", "stop")
        max_tokens = -1 if job.max_tokens is None else min(job.max_tokens, 2**31 - 1)
        sampling = replace(job.sampling, logit_bias=self._biases(job.sampling.logit_bias))
        scales = self._adapters.scales(job.lora)
        noted = replace(job, prompts=())  # nobody's text is kept
        tasks = [
            Task(
                tokens,
                max_tokens,
                sampling,
                (seed + answer) % 2**32,
                stops,
                job.share_prefix,
                max_ms=job.max_ms,
                scores_prompt=job.scores_prompt,
                owner=_owner(job.caller),
                adapter_scales=scales,
                tells_progress=job.tells_progress,
                id=self._notes.number(noted),
                slot=job.slot,
            )
            for tokens in prompts
            for answer in range(job.n)
        ]
        return tasks, prompts

    def _biases(self, biases: Sequence[tuple[int | str, float]]) -> tuple[tuple[int, float], ...]:
        """The same with texts turned into their tokens. Raises Refused for ids that the model does not have."""
        vocabulary = self.vocabulary(None)
        found: list[tuple[int, float]] = []
        turns = waits.Turns()
        for key, bias in biases:
            turns.give_way()
            if isinstance(key, str) and len(key) > MAX_BIASED_CHARS:
                raise errors.Refused(f"logit_bias: a text has at most {MAX_BIASED_CHARS} characters", "logit_bias")
            tokens = [key] if isinstance(key, int) else vocabulary.tokens_of([Piece(key, True)], False, "logit_bias")
            for token in tokens:
                vocabulary.check(token, "logit_bias")
                found.append((token, bias))
            # Each of them is looked at for each token of each answer.
            if len(found) > MAX_BIASES:
                raise errors.Refused(f"logit_bias: its texts have more than {MAX_BIASES} tokens", "logit_bias")
        return tuple(found)

    def _check_model(self, model: str | None) -> None:
        assert self._card is not None
        if self._settings.strict_model and model is not None and model not in (self._card.id, *self._card.aliases):
            raise errors.ModelNotFound(model)

    def encode(self, prompt: Prompt) -> Sequence[int]:
        """Token ids of a prompt, checked against the context. May wait while a long text is tokenised."""
        return self.vocabulary(None).encode(prompt)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens spelled out."""
        return b"".join(map(self.vocabulary(None).piece, tokens)).decode("utf-8", "replace")

    def stats(self) -> DecodeStats | None:
        """Counters as of the last step; None before the engine is open and after it is closed."""
        if self._native is None or self._is_closed or os.getpid() != self._pid:
            return None
        return self._native.stats()

    def slots(self) -> tuple[SlotState, ...]:
        """What each slot does, or did last, as of the last step; never waits for one. Raises as `check` does.

        A slot is a lane of the KV cache while something runs in it. Afterwards it shows its last task, and what that
        left lies in the prefix cache, which all slots share.
        """
        self.check()
        assert self._native is not None
        return self._notes.describe(self._native.slots(self._settings.slots))

    def save_slot(self, slot: int, path: str, caller: str = "") -> SlotFile:
        """Writes what the slot's last task left; see corosrv.jobs.HasSlots."""
        return self._slot_keeper().save(slot, path, _owner(caller))

    def restore_slot(self, slot: int, path: str, caller: str = "") -> SlotFile:
        """Takes it in again, for this slot and the prefix cache."""
        return self._slot_keeper().restore(slot, path, _owner(caller))

    def erase_slot(self, slot: int, caller: str = "") -> int:
        """Forgets it."""
        return self._slot_keeper().erase(slot, _owner(caller))

    def _slot_keeper(self) -> SlotKeeper:
        self.check()
        assert self._keeper is not None
        return self._keeper

    def adapters(self) -> tuple[Adapter, ...]:
        """The LoRA adapters that were loaded with the model."""
        return self._adapters.list()

    def set_adapters(self, scales: Mapping[int, float]) -> None:
        """How much of each adapter jobs get from now on that do not say, and nothing of those that are not named.

        Raises Refused for an adapter that there is not.
        """
        self._adapters.set(scales)

    def stop_accepting(self) -> None:
        """From now on jobs are refused; those that were taken go on."""
        self._is_draining = True

    def drain(self, message: str = "the server is shutting down") -> None:
        """Ends every job, waiting or running, with an error chunk of this message."""
        self.stop_accepting()
        if self._native is not None and not self._is_closed and os.getpid() == self._pid:
            self._native.drain(message)

    def close(self) -> None:
        """Ends every job and the decode thread; waits for the step in progress. Twice is harmless."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        if self._native is not None:
            self._native.close()


def _owner(caller: str) -> int:
    """With whom prefixes are shared, as a number."""
    return int.from_bytes(hashlib.sha256(caller.encode()).digest()[:8], "little") if caller else 0


def _model_card(settings: Settings, info: ModelInfo, traits: Traits | None) -> ModelCard:
    """`traits`: of the chat template; None where there is none."""
    meta = {
        "vocab_type": info.vocab_type,
        "n_vocab": info.n_vocab,
        "n_ctx": info.context,
        "n_ctx_train": info.context_train,
        "n_embd": info.n_embd,
        "n_params": info.n_params,
        "size": info.size,
        "ftype": info.ftype,
        "pooling": info.pooling,
    }
    # Other kernels round otherwise: the same seed may then give another text.
    kernels = "k" if info.own_kernels else ""
    built_with = "synthetic" if settings.is_synthetic else FINGERPRINT[:10]
    card = ModelCard(
        settings.names[0],
        int(time.time()),
        settings.aliases,
        settings.labels,
        meta=meta,
        fingerprint=f"b{built_with}{kernels}",
        capabilities=_capabilities(info, traits is not None),
        file=settings.file,
        slots=settings.slots,
    )
    if traits is None:
        return card
    return replace(
        card,
        tool_format=traits.tool_format,
        reasoning_tags=traits.thought_tags,
        opens_reasoning=traits.opens_thoughts,
        reasons=settings.reasoning != "off",
        splits_reasoning=settings.reasoning_format != "none",
    )


def _capabilities(info: ModelInfo, has_template: bool) -> frozenset[str]:
    found = set()
    if info.generates:
        found |= {"completion"} | ({"chat", "tools"} if has_template else set())
        found |= set() if info.infill is None else {"infill"}
    if info.pooling == "rank":
        found.add("rerank")
    elif info.n_vector:
        found.add("embeddings")
    return frozenset(found)
