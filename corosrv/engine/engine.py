"""The engine as a Worker: opens the decode loop, turns prompts into tokens, submits jobs."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from corosrv import errors
from corosrv.engine import probe, waits
from corosrv.engine.binding import FINGERPRINT, ModelInfo, NativeEngine, Options, Synthetic, Task
from corosrv.engine.chat import ChatTemplate
from corosrv.engine.cpu import physical_cores
from corosrv.engine.reader import Reader
from corosrv.jobs import Job, Messages, ModelCard, Prompt, State, Text, Tokens
from corosrv.settings import Settings
from corosrv.stats import DecodeStats

log = logging.getLogger("corosrv.engine")

# A text longer than this many times the context cannot fit, whatever its tokens: refused before it is tokenised.
_MAX_BYTES_PER_TOKEN = 16
# What a token has on average, for the error's estimate.
_BYTES_PER_TOKEN = 4
# Texts up to this size are tokenised at once (some 0.2 ms); longer ones in the thread pool.
_SHORT_BYTES = 4096


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
        self._template: ChatTemplate | None = None
        self._card: ModelCard | None = None
        self._failure: str | None = None
        self._is_closed = False
        self._is_draining = False

    def open(self) -> None:
        """Loads the model; waits until it is ready. Raises ModelFailed, and `state` is FAILED from then on."""
        try:
            self._open()
        except errors.CorosrvError as error:
            self._failure = str(error)
            log.error("the model cannot be served: %s", error)
            raise errors.ModelFailed(self._failure) from error
        except BaseException as error:
            self._failure = f"the engine could not start: {type(error).__name__}"
            raise

    def _open(self) -> None:
        began = time.monotonic()
        self._check_alive()
        native = NativeEngine(self._options())
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
        self._template = ChatTemplate(info.chat_template, *_special_texts(native, info)) if info.chat_template else None
        self._card = _model_card(self._settings.names, info, "" if self._settings.is_synthetic else FINGERPRINT)
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
            threads=settings.threads or physical_cores(),
            step_ms=settings.step_ms,
            reader_bytes=settings.reader_bytes,
            cache_bytes=settings.cache_bytes,
            deterministic=settings.deterministic,
            safe_load=is_safe,
            kernels=settings.kernels,
        )

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

    @property
    def info(self) -> ModelInfo:
        """What the model is. Raises Starting before it is loaded."""
        self.check()
        assert self._info is not None
        return self._info

    def submit(self, job: Job) -> Reader:
        """Renders, tokenises and queues; a long prompt is read in the thread pool meanwhile.

        Raises Refused for what cannot be served, Unavailable for what cannot be served now.
        """
        self.check()
        assert self._native is not None
        self._check_model(job.model)
        prompts = [self.encode(prompt, number, len(job.prompts)) for number, prompt in enumerate(job.prompts)]
        seed = job.sampling.seed if job.sampling.seed is not None else secrets.randbits(32)
        stops = [stop.encode() for stop in job.stop]
        max_tokens = -1 if job.max_tokens is None else min(job.max_tokens, 2**31 - 1)
        sampling = replace(job.sampling, logit_bias=self._biases(job.sampling.logit_bias))
        tasks = [
            Task(tokens, max_tokens, sampling, (seed + answer) % 2**32, stops, job.share_prefix)
            for tokens in prompts
            for answer in range(job.n)
        ]
        return Reader(self._native.submit(tasks), len(tasks), tuple(map(len, prompts)))

    def _biases(self, biases: Sequence[tuple[int | str, float]]) -> tuple[tuple[int, float], ...]:
        """The same with texts turned into their tokens. Raises Refused for ids that the model does not have."""
        n_vocab = self.info.n_vocab
        found: list[tuple[int, float]] = []
        for key, bias in biases:
            tokens = [key] if isinstance(key, int) else self._tokenize([(key, False)], False, "logit_bias")
            for token in tokens:
                if not 0 <= token < n_vocab:
                    raise errors.Refused(
                        f"logit_bias: {token} is no token id of this model (0 to {n_vocab - 1})", "logit_bias"
                    )
                found.append((token, bias))
        return tuple(found)

    def _check_model(self, model: str | None) -> None:
        assert self._card is not None
        if self._settings.strict_model and model is not None and model not in (self._card.id, *self._card.aliases):
            raise errors.ModelNotFound(model)

    def encode(self, prompt: Prompt, number: int = 0, n_prompts: int = 1) -> Sequence[int]:
        """Token ids of a prompt, checked against the context. May wait while a long text is tokenised.

        `number` of `n_prompts`: which one it is, for the error.
        """
        context = self.info.context
        is_chat = isinstance(prompt, Messages)
        param = "messages" if is_chat else "prompt" if n_prompts == 1 else f"prompt[{number}]"
        if isinstance(prompt, Tokens):
            unknown = next((id for id in prompt.ids if not 0 <= id < self.info.n_vocab), None)
            if unknown is not None:
                raise errors.Refused(f"{param}: {unknown} is no token id of this model", param)
            tokens: Sequence[int] = prompt.ids
        elif isinstance(prompt, Text):
            tokens = self._tokenize([(prompt.text, True)], True, param)
        else:
            tokens = self._tokenize_chat(prompt)
        if not tokens:
            # Nothing to condition on: begin with the token that begins a sequence.
            if self.info.bos < 0:
                raise errors.Refused(f"{param} is empty, and this model has no beginning-of-sequence token", param)
            tokens = (self.info.bos,)
        if len(tokens) >= context:
            raise errors.PromptTooLong(len(tokens), context, param)
        return tokens

    def _tokenize_chat(self, prompt: Messages) -> list[int]:
        if self._template is None:
            raise errors.NotSupported("this model carries no chat template; use /v1/completions", "messages")
        pieces = self._template.render(prompt)
        # Templates that write the beginning-of-sequence token themselves must not get a second one.
        bos = self._native_text(self.info.bos)
        begins_itself = bool(bos) and bool(pieces) and pieces[0].text.startswith(bos)
        return self._tokenize([(piece.text, not piece.is_text) for piece in pieces], not begins_itself, "messages")

    def _native_text(self, token: int) -> str:
        assert self._native is not None
        return self._native.token_text(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def _tokenize(self, pieces: Sequence[tuple[str, bool]], add_special: bool, param: str) -> list[int]:
        """`pieces` are texts and whether control markers in them count."""
        native, context = self._native, self.info.context
        assert native is not None
        texts = [(text.encode(), parse_special) for text, parse_special in pieces]
        size = sum(len(text) for text, _ in texts)
        if size > _MAX_BYTES_PER_TOKEN * context:
            raise errors.PromptTooLong(size // _BYTES_PER_TOKEN, context, param, is_estimate=True)
        tokens: list[int] = []
        for number, (text, parse_special) in enumerate(texts):
            call = (native.tokenize, text, add_special and number == 0, parse_special)
            tokens += call[0](*call[1:]) if size <= _SHORT_BYTES else waits.call_in_thread(*call)
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens spelled out."""
        self.check()
        assert self._native is not None
        return b"".join(self._native.token_text(token, special=True) for token in tokens).decode("utf-8", "replace")

    def stats(self) -> DecodeStats | None:
        """Counters as of the last step; None before the engine is open and after it is closed."""
        if self._native is None or self._is_closed or os.getpid() != self._pid:
            return None
        return self._native.stats()

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


def _special_texts(native: NativeEngine, info: ModelInfo) -> tuple[list[str], dict[str, str]]:
    """Texts of all control tokens, and what templates know as bos_token and eos_token."""

    def text(token: int) -> str:
        return native.token_text(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    return [text(token) for token in native.control_tokens()], {
        "bos_token": text(info.bos),
        "eos_token": text(info.eos),
    }


def _model_card(names: Sequence[str], info: ModelInfo, fingerprint: str) -> ModelCard:
    meta = {
        "vocab_type": info.vocab_type,
        "n_vocab": info.n_vocab,
        "n_ctx": info.context,
        "n_ctx_train": info.context_train,
        "n_embd": info.n_embd,
        "n_params": info.n_params,
        "size": info.size,
        "ftype": info.ftype,
    }
    # Other kernels round otherwise: the same seed may then give another text.
    kernels = "k" if info.own_kernels else ""
    fingerprint = f"b{fingerprint[:10] or 'synthetic'}{kernels}"
    return ModelCard(names[0], int(time.time()), tuple(names[1:]), meta, fingerprint)
