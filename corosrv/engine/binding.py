"""The only user of the extension: codes become exceptions, C structs become values, handles become objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NoReturn

import msgspec

from corosrv import errors
from corosrv.engine import libllama
from corosrv.engine.likelihoods import token_infos
from corosrv.engine.waits import Turns, call_in_thread
from corosrv.jobs import SAMPLERS, Chunk, Finish, InfillTokens, Sampling, TokenInfo
from corosrv.stats import DecodeStats, Histogram

libllama.open_library()
try:
    from corosrv._native import ffi, lib
except ImportError as error:
    raise errors.LibllamaError(f"corosrv's extension cannot be loaded ({error}); {libllama.REBUILD}") from error
# Hash of the llama.h and ggml.h that the extension was built with.
FINGERPRINT = bytes(ffi.string(lib.corosrv_llama_fingerprint())).decode()
libllama.check_fingerprint(FINGERPRINT)

_MESSAGE_BYTES = 512
_FEW_TASKS = 64  # of a job, that are taken without anybody noticing
_ERRORS: dict[int, type[errors.CorosrvError]] = {
    lib.COROSRV_INVALID: errors.Refused,
    lib.COROSRV_QUEUE_FULL: errors.QueueFull,
    lib.COROSRV_NO_DESCRIPTOR: errors.NoDescriptor,
    lib.COROSRV_NOT_READY: errors.Starting,
    lib.COROSRV_CLOSED: errors.ShuttingDown,
    lib.COROSRV_FORKED: errors.UsedAfterFork,
    lib.COROSRV_TOO_LONG: errors.Refused,
    lib.COROSRV_INTERNAL: errors.CorosrvError,
    lib.COROSRV_INVALID_GRAMMAR: errors.InvalidGrammar,
    lib.COROSRV_UNSUPPORTED: errors.NotSupported,
}
_FORKED = (
    "this engine was opened before a fork() and serves the parent process only; open one in each process after "
    "forking (gunicorn: do not use --preload)"
)
_FINISH = (None, Finish.STOP, Finish.LENGTH, Finish.CANCELLED, Finish.ERROR)
_KERNELS = {"auto": lib.COROSRV_KERNELS_AUTO, "ggml": lib.COROSRV_KERNELS_GGML}
_POOLINGS = {
    "": lib.COROSRV_POOLING_MODEL,
    "none": lib.COROSRV_POOLING_NONE,
    "mean": lib.COROSRV_POOLING_MEAN,
    "cls": lib.COROSRV_POOLING_CLS,
    "last": lib.COROSRV_POOLING_LAST,
    "rank": lib.COROSRV_POOLING_RANK,
}
_POOLING_NAMES = {number: name for name, number in _POOLINGS.items()}
_FLOAT_BYTES = _INT32_BYTES = 4
_INFO_TEXTS = ("ftype", "description", "chat_template", "rerank_template")
# Looked up once: these are needed for every chunk.
_UNFINISHED = lib.COROSRV_UNFINISHED
_reader_take = lib.corosrv_reader_take
_unpack = ffi.unpack
_buffer = ffi.buffer
# What jobs.SAMPLERS names, as corosrv_sampler numbers it.
_SAMPLERS = dict(
    zip(
        SAMPLERS,
        (
            lib.COROSRV_SAMPLER_PENALTIES, lib.COROSRV_SAMPLER_DRY, lib.COROSRV_SAMPLER_TOP_N_SIGMA,
            lib.COROSRV_SAMPLER_TOP_K, lib.COROSRV_SAMPLER_TYPICAL_P, lib.COROSRV_SAMPLER_TOP_P,
            lib.COROSRV_SAMPLER_MIN_P, lib.COROSRV_SAMPLER_XTC, lib.COROSRV_SAMPLER_TEMPERATURE,
            lib.COROSRV_SAMPLER_ADAPTIVE_P,
        ),
        strict=True,
    )
)  # fmt: skip
_LIKELIHOOD_BYTES = ffi.sizeof("corosrv_likelihood")
_STATES = {
    lib.COROSRV_STARTING: "starting",
    lib.COROSRV_READY: "ready",
    lib.COROSRV_FAILED: "failed",
    lib.COROSRV_STOPPED: "stopped",
}


_JSON_FAULTS = {
    lib.COROSRV_JSON_DEPTH: "depth",
    lib.COROSRV_JSON_KEYS: "keys",
    lib.COROSRV_JSON_DIGITS: "digits",
    lib.COROSRV_JSON_VALUES: "values",
}


class JsonLimits:
    """What a JSON text may ask of its parser; see corosrv_json_limits in the C header."""

    def __init__(self, *, depth: int, keys: int, digits: int, values: int) -> None:
        limits = {"depth": depth, "keys": keys, "digits": digits, "values": values}
        self._limits = ffi.new("corosrv_json_limits *", limits)

    def fault(self, text: bytes) -> tuple[str, int] | None:
        """The name of the first limit that the text exceeds, and the byte where it does. Without the GIL."""
        fault, at = ffi.new("int *"), ffi.new("size_t *")
        _check(lib.corosrv_check_json(ffi.from_buffer(text), len(text), self._limits, fault, at))
        return (_JSON_FAULTS[fault[0]], at[0]) if fault[0] else None


class Synthetic(msgspec.Struct, frozen=True):
    """Speeds of a made-up model; see corosrv_synthetic in the C header."""

    tokens_per_s: float = 20.0
    prefill_tokens_per_s: float = 0.0
    length: int = 0


class GrammarLimits(msgspec.Struct, frozen=True):
    """What a grammar may be; see corosrv_grammar_limits in the C header. 0 of any is corosrv's own choice."""

    bytes: int = 0
    depth: int = 0
    rules: int = 0
    repetitions: int = 0
    elements: int = 0
    token_ms: float = 0.0


class Options(msgspec.Struct, frozen=True):
    """How an engine is opened; see corosrv_options in the C header."""

    model: str
    synthetic: Synthetic | None
    context: int
    slots: int
    queue: int
    tasks_of_owner: int
    threads: int
    step_ms: float
    reader_bytes: int
    cache_bytes: int = 0
    deterministic: bool = False
    safe_load: bool = False
    kernels: str = "auto"
    batch: int = 512
    pooling: str = ""  # "": the model's, else mean
    adapters: tuple[str, ...] = ()  # paths of LoRA adapters
    grammars: GrammarLimits = GrammarLimits()
    queue_s: float = 0.0
    stall_s: float = 0.0


class ModelInfo(msgspec.Struct, frozen=True):
    """What the model is; see corosrv_model_info in the C header."""

    context: int
    context_train: int
    n_vocab: int
    n_embd: int
    vocab_type: int
    add_bos: int
    bos: int
    eos: int
    n_params: int
    size: int
    own_kernels: int
    packed_bytes: int
    ftype: str
    description: str
    chat_template: str
    generates: int
    n_vector: int
    pooling: str
    add_eos: int
    add_sep: int
    sep: int
    fim_prefix: int
    fim_suffix: int
    fim_middle: int
    fim_repository: int
    fim_file: int
    rerank_template: str
    n_adapters: int

    @property
    def infill(self) -> InfillTokens | None:
        """None where the model has none."""
        needed = (self.fim_prefix, self.fim_suffix, self.fim_middle)
        return None if min(needed) < 0 else InfillTokens(*needed, self.fim_repository, self.fim_file)

    @property
    def kernels(self) -> str:
        """Who multiplies matrices and computes attention, in words."""
        if self.own_kernels:
            return f"corosrv's kernels ({self.packed_bytes / 1e6:.0f} MB of weights repacked)"
        return "libllama's kernels alone"


class Slot(msgspec.Struct, frozen=True):
    """What a slot does, or did last; see corosrv_slot in the C header."""

    task: int
    is_busy: int
    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int
    generated_tokens: int
    has_new_line: int


class SlotContent(msgspec.Struct, frozen=True):
    """What a slot's last task left; see corosrv_slot_content in the C header."""

    tokens: bytes | memoryview  # int32
    adapter_scales: bytes | memoryview  # float32
    state: bytes | memoryview

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) // _INT32_BYTES


class SlotAction(Enum):
    """What is to be done with it."""

    SAVE = lib.COROSRV_SLOT_SAVE
    RESTORE = lib.COROSRV_SLOT_RESTORE
    ERASE = lib.COROSRV_SLOT_ERASE


class Kind(Enum):
    """What a task comes to."""

    GENERATE = lib.COROSRV_GENERATE
    EMBED = lib.COROSRV_EMBED
    RANK = lib.COROSRV_RANK


class Task(msgspec.Struct, frozen=True):
    """One generation, or one prompt to be embedded, ready for the decode loop."""

    tokens: Sequence[int]
    max_tokens: int = -1  # -1: until the context is full
    sampling: Sampling = Sampling()
    seed: int = 0
    stops: Sequence[bytes] = ()
    share_prefix: bool = True
    kind: Kind = Kind.GENERATE
    pools: bool = True  # of EMBED, as is what follows; see corosrv.jobs.EmbedJob
    normalize: int = 2
    max_ms: float = 0.0
    scores_prompt: bool = False
    owner: int = 0  # of 64 bits; prefixes are shared among tasks of the same
    adapter_scales: Sequence[float] = ()  # of each that was loaded; none: nothing of any
    tells_progress: bool = False
    id: int = 0  # what slots() shows of it
    slot: int = -1  # where it has to run; -1: anywhere


def _raise(code: int, message: str) -> NoReturn:
    if code == lib.COROSRV_FORKED:
        raise errors.UsedAfterFork(_FORKED)
    raise _ERRORS[code](message or "the native call failed")


def _check(code: int, message: Any = None) -> None:
    if code != lib.COROSRV_OK:
        _raise(code, "" if message is None else _text(message))


def _text(c_string: Any) -> str:
    return bytes(ffi.string(c_string)).decode("utf-8", "replace")


def _histogram(c_histogram: Any) -> Histogram:
    return Histogram(tuple(c_histogram.buckets), c_histogram.sum)


class NativeReader:
    """Handle of a corosrv_reader. Closed when dropped, if nobody did it before."""

    __slots__ = ("_batch", "_handle", "fd")

    def __init__(self, handle: Any) -> None:
        self._handle = ffi.gc(handle, lib.corosrv_reader_close)
        self.fd: int = lib.corosrv_reader_fd(handle)
        self._batch = ffi.new("corosrv_batch *")

    def take(self, clear: bool = True) -> list[Chunk]:
        """All unread chunks, perhaps none. Clears the descriptor; whoever watches its edges may save that."""
        batch = self._batch
        if code := _reader_take(self._handle, clear, batch):
            _raise(code, "")
        n_chunks, chunks = batch.n_chunks, batch.chunks
        if n_chunks == 1:
            return [_chunk(chunks[0])]
        return [_chunk(chunks[i]) for i in range(n_chunks)]

    def cancel(self) -> None:
        _check(lib.corosrv_reader_cancel(self._handle))

    def close(self) -> None:
        ffi.release(self._handle)


class NativeErrand:
    """Handle of a corosrv_errand. Closed when dropped."""

    __slots__ = ("_handle", "fd")

    def __init__(self, handle: Any) -> None:
        self._handle = ffi.gc(handle, lib.corosrv_errand_close)
        self.fd: int = lib.corosrv_errand_fd(handle)

    def result(self) -> SlotContent:
        """Once `fd` is readable. What it points to lives as long as this object. Raises what became of the errand."""
        content, message = ffi.new("corosrv_slot_content *"), ffi.new("char[]", _MESSAGE_BYTES)
        _check(lib.corosrv_errand_result(self._handle, content, message, _MESSAGE_BYTES), message)
        return SlotContent(
            _view(content.tokens, _INT32_BYTES * content.n_tokens),
            _view(content.adapter_scales, _FLOAT_BYTES * content.n_adapter_scales),
            _view(content.state, content.state_size),
        )

    def abandon(self) -> None:
        """What was not begun is not done. After the answer it does nothing."""
        lib.corosrv_errand_abandon(self._handle)


def _view(pointer: Any, size: int) -> memoryview:
    return memoryview(_buffer(pointer, size)) if size else memoryview(b"")


def _chunk(chunk: Any) -> Chunk:
    text = _unpack(chunk.text, chunk.text_size).decode()
    finish = chunk.finish
    tokens = _token_infos(chunk.tokens) if chunk.tokens.n_entries else ()
    prompt_info = _token_infos(chunk.prompt_info) if chunk.prompt_info.n_entries else ()
    if finish == _UNFINISHED and not tokens and not prompt_info and chunk.read_tokens < 0:
        return Chunk(chunk.index, text, chunk.n_tokens)
    return Chunk(
        chunk.index,
        text,
        chunk.n_tokens,
        _FINISH[finish],
        chunk.prompt_tokens,
        chunk.cached_tokens,
        chunk.prompt_ms,
        chunk.decode_ms,
        _unpack(chunk.stopping_word.data, chunk.stopping_word.size).decode(),
        _text(chunk.code),
        chunk.slot,
        tokens=tokens,
        prompt_info=prompt_info,
        read_tokens=chunk.read_tokens,
        vector=bytes(_buffer(chunk.vector, _FLOAT_BYTES * chunk.n_vector)) if chunk.n_vector else b"",
    )


def _token_infos(tokens: Any) -> tuple[TokenInfo, ...]:
    size = tokens.n_entries * _LIKELIHOOD_BYTES
    return token_infos(bytes(ffi.buffer(tokens.entries, size)), bytes(_unpack(tokens.pieces, tokens.pieces_size)))


class NativeEngine:
    """Handle of a corosrv_engine."""

    def __init__(self, options: Options) -> None:
        """Starts the decode thread, which loads the model; returns at once."""
        model = ffi.new("char[]", options.model.encode())
        synthetic = ffi.NULL
        if options.synthetic is not None:
            synthetic = ffi.new("corosrv_synthetic *", msgspec.structs.asdict(options.synthetic))
        fields = msgspec.structs.asdict(options)
        fields |= {"model": model, "synthetic": synthetic, "kernels": _KERNELS[options.kernels]}
        paths = [ffi.new("char[]", path.encode()) for path in options.adapters]
        adapters = ffi.new("char *[]", paths)
        fields |= {"pooling": _POOLINGS[options.pooling], "adapters": adapters, "n_adapters": len(paths)}
        fields["grammars"] = msgspec.structs.asdict(options.grammars)
        engine, message = ffi.new("corosrv_engine **"), ffi.new("char[]", _MESSAGE_BYTES)
        _check(lib.corosrv_engine_open(ffi.new("corosrv_options *", fields), engine, message, _MESSAGE_BYTES), message)
        self._handle = engine[0]
        self.fd: int = lib.corosrv_engine_fd(self._handle)

    def _open_handle(self) -> Any:
        if self._handle is None:
            raise errors.UsedAfterClose("the engine is closed; open another one")
        return self._handle

    def state(self) -> tuple[str, str]:
        """starting, ready, failed or stopped; and the reason."""
        state, message = ffi.new("int *"), ffi.new("char[]", _MESSAGE_BYTES)
        _check(lib.corosrv_engine_state(self._open_handle(), state, message, _MESSAGE_BYTES), message)
        return _STATES[state[0]], _text(message)

    def info(self) -> ModelInfo:
        info = ffi.new("corosrv_model_info *")
        _check(lib.corosrv_engine_info(self._open_handle(), info))
        texts = {name: _text(getattr(info, name)) for name in _INFO_TEXTS}
        texts["pooling"] = _POOLING_NAMES[info.pooling]
        return ModelInfo(**{name: getattr(info, name) for name in ModelInfo.__struct_fields__} | texts)

    def stats(self) -> DecodeStats:
        stats = ffi.new("corosrv_stats *")
        _check(lib.corosrv_engine_stats(self._open_handle(), stats))
        histograms = {name: _histogram(getattr(stats, name)) for name in ("queue_wait", "ttft", "itl")}
        return DecodeStats(**{name: getattr(stats, name) for name in DecodeStats.__struct_fields__} | histograms)

    def slots(self, count: int) -> list[Slot]:
        """The first `count`, which have to be there, as of the last step."""
        slots = ffi.new("corosrv_slot[]", count)
        _check(lib.corosrv_engine_slots(self._open_handle(), slots, count))
        return [Slot(**{name: getattr(slot, name) for name in Slot.__struct_fields__}) for slot in slots]

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids; takes time in proportion to the text, without the GIL."""
        n_tokens, n_found = ffi.new("size_t *"), len(text) + 2
        handle, capacity = self._open_handle(), 0
        # Nearly every text has at most that many; some vocabularies make several tokens of a byte: those ask twice.
        while n_found > capacity:
            capacity = n_found
            tokens = ffi.new("int32_t[]", capacity)
            _check(
                lib.corosrv_tokenize(handle, text, len(text), add_special, parse_special, tokens, capacity, n_tokens)
            )
            n_found = n_tokens[0]
        return list(ffi.unpack(tokens, n_found)) if n_found else []

    def token_text(self, token: int, special: bool = False) -> bytes:
        text = ffi.new("corosrv_text *")
        _check(lib.corosrv_token_text(self._open_handle(), token, special, text))
        return bytes(ffi.buffer(text.data, text.size))

    def control_tokens(self) -> list[int]:
        return self._tokens_that(lib.corosrv_token_is_control)

    def end_tokens(self) -> list[int]:
        """Those that end an answer."""
        return self._tokens_that(lib.corosrv_token_is_end)

    def _tokens_that(self, are: Callable[[Any, int], int]) -> list[int]:
        handle = self._open_handle()
        return [token for token in range(self.info().n_vocab) if are(handle, token)]

    def submit(self, tasks: Sequence[Task]) -> NativeReader:
        """Queues all tasks or none. Lets others run meanwhile where there is much to do."""
        parts = _TaskParts()  # what the C structs point to, until the call returns
        c_tasks = ffi.new("corosrv_task[]", len(tasks))
        turns = Turns()
        for number, task in enumerate(tasks):
            c_tasks[number] = parts.task(task)
            turns.give_way()
        reader, message = ffi.new("corosrv_reader **"), ffi.new("char[]", _MESSAGE_BYTES)
        call = (lib.corosrv_submit, self._open_handle(), c_tasks, len(tasks), reader, message, _MESSAGE_BYTES)
        takes_long = len(tasks) > _FEW_TASKS or any(map(_takes_long, tasks))
        _check(call_in_thread(*call) if takes_long else call[0](*call[1:]), message)
        return NativeReader(reader[0])

    def ask_slot(self, action: SlotAction, slot: int, owner: int, content: SlotContent | None = None) -> NativeErrand:
        """Asks for what `action` says, as soon as the slot is idle. Copies the content, without the GIL."""
        c_content = ffi.NULL
        keep: list[Any] = []
        if content is not None:
            keep = [
                ffi.from_buffer(c_type, part)
                for c_type, part in (
                    ("int32_t[]", content.tokens), ("float[]", content.adapter_scales), ("uint8_t[]", content.state)
                )
            ]  # fmt: skip
            tokens, scales, state = keep
            c_content = ffi.new("corosrv_slot_content *", (tokens, len(tokens), scales, len(scales), state, len(state)))
        errand, message = ffi.new("corosrv_errand **"), ffi.new("char[]", _MESSAGE_BYTES)
        handle = self._open_handle()
        code = lib.corosrv_slot_ask(handle, action.value, slot, owner, c_content, errand, message, _MESSAGE_BYTES)
        _check(code, message)
        return NativeErrand(errand[0])

    def drain(self, message: str) -> None:
        """Ends every task with an error chunk of this message, and refuses new ones."""
        _check(lib.corosrv_engine_drain(self._open_handle(), message.encode()))

    def close(self) -> None:
        """Waits for the step in progress. Twice is harmless."""
        handle, self._handle = self._handle, None
        if handle is not None:
            lib.corosrv_engine_close(handle)


def _takes_long(task: Task) -> bool:
    """A grammar is compiled, or breakers are looked for in all of the vocabulary."""
    sampling = task.sampling
    return bool(sampling.grammar or (sampling.dry_multiplier and sampling.dry_sequence_breakers))


class _TaskParts:
    """What C structs of tasks are made of, each made once however many tasks have it. Owns what they point to."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Any] = {}
        self._of: list[Any] = []  # kept, so that no other object gets the same id

    def task(self, task: Task) -> dict[str, Any]:
        return {
            "tokens": self._array("int32_t[]", task.tokens),
            "n_tokens": len(task.tokens),
            "max_tokens": task.max_tokens,
            "stops": self._texts(task.stops),
            "n_stops": len(task.stops),
            "share_prefix": task.share_prefix,
            "kind": task.kind.value,
            "pools": task.pools,
            "normalize": task.normalize,
            "max_ms": task.max_ms,
            "scores_prompt": task.scores_prompt,
            "owner": task.owner,
            "id": task.id,
            "slot": task.slot + 1,
            "adapter_scales": self._array("float[]", task.adapter_scales) if task.adapter_scales else ffi.NULL,
            "tells_progress": task.tells_progress,
            "sampling": self._sampling(task.sampling) | {"seed": task.seed},
        }

    def _sampling(self, sampling: Sampling) -> dict[str, Any]:
        """All but the seed."""
        made: dict[str, Any] = self._once("sampling", sampling, self._new_sampling)
        return made

    def _new_sampling(self, sampling: Sampling) -> dict[str, Any]:
        grammar = self._once("grammar", sampling.grammar, lambda text: ffi.new("char[]", text.encode()))
        return {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "typical_p": sampling.typical_p,
            "repeat_penalty": sampling.repeat_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repeat_last_n": sampling.repeat_last_n,
            "ignore_eos": sampling.ignore_eos,
            "biases": self._array("corosrv_bias[]", sampling.logit_bias),
            "n_biases": len(sampling.logit_bias),
            "grammar": {"data": grammar, "size": len(grammar) - 1},  # without the NUL that cffi adds
            "grammar_triggers": self._texts([text.encode() for text in sampling.grammar_triggers]),
            "n_grammar_triggers": len(sampling.grammar_triggers),
            "top_n_sigma": sampling.top_n_sigma,
            "xtc_probability": sampling.xtc_probability,
            "xtc_threshold": sampling.xtc_threshold,
            "dynatemp_range": sampling.dynatemp_range,
            "dynatemp_exponent": sampling.dynatemp_exponent,
            "dry_multiplier": sampling.dry_multiplier,
            "dry_base": sampling.dry_base,
            "dry_allowed_length": sampling.dry_allowed_length,
            "dry_penalty_last_n": sampling.dry_penalty_last_n,
            "dry_breakers": self._texts([text.encode() for text in sampling.dry_sequence_breakers]),
            "n_dry_breakers": len(sampling.dry_sequence_breakers),
            "mirostat": sampling.mirostat,
            "mirostat_tau": sampling.mirostat_tau,
            "mirostat_eta": sampling.mirostat_eta,
            "adaptive_target": sampling.adaptive_target,
            "adaptive_decay": sampling.adaptive_decay,
            "min_keep": sampling.min_keep,
            "samplers": self._array("int32_t[]", [_SAMPLERS[name] for name in sampling.samplers]),
            "n_samplers": len(sampling.samplers),
            "n_probs": sampling.n_probs,
            "post_sampling_probs": sampling.post_sampling_probs,
        }

    def _array(self, c_type: str, value: Sequence[Any]) -> Any:
        return self._once(c_type, value, lambda value: ffi.new(c_type, value))

    def _texts(self, of: Sequence[bytes]) -> Any:
        return self._once("texts", of, self._new_texts)

    def _new_texts(self, of: Sequence[bytes]) -> Any:
        return ffi.new("corosrv_text[]", [{"data": self._array("char[]", text), "size": len(text)} for text in of])

    def _once(self, kind: str, value: Any, make: Callable[[Any], Any]) -> Any:
        key = kind, id(value)
        if key not in self._made:
            self._of.append(value)
            self._made[key] = make(value)
        return self._made[key]
