"""The native engine: opened with options, asked for what it knows of its model, and given tasks and requests to slots.

`NativeJsonScanner` and `chat_template_names` need no engine: they are functions of the core and of libllama. What is
lent to the C API (`BorrowedOptions`, `BorrowedContent`) is an object that owns the memory its struct points to. Its
model's tokens are `TokenCalls`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from corosrv.base import errors
from corosrv.base.processor import Turns
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs.worker import DecodeStats, Histogram
from corosrv.models.engine.binding.library import FLOAT_BYTES, INT32_BYTES, MESSAGE_BYTES, check, ffi, lib, text_of
from corosrv.models.engine.binding.reader import NativeReader
from corosrv.models.engine.binding.tasks import BorrowedTasks, take_long
from corosrv.models.engine.binding.values import (
    POOLINGS,
    BorrowedOptions,
    ModelInfo,
    Options,
    SlotAction,
    SlotContent,
    SlotCounters,
    Task,
)


class TokenCalls(ABC):
    """Calls the core about tokens, with the corosrv_vocabulary that a subclass has."""

    @abstractmethod
    def _vocabulary(self) -> Any:
        """Returns the handle. Raises UsedAfterClose."""

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        """Returns token ids; takes time in proportion to the text, without the GIL."""
        n_tokens, n_found = ffi.new("size_t *"), len(text) + 2
        handle, capacity = self._vocabulary(), 0
        # Nearly every text has at most that many; some vocabularies make several tokens of a byte: those ask twice.
        while n_found > capacity:
            capacity = n_found
            tokens = ffi.new("int32_t[]", capacity)
            check(lib.corosrv_tokenize(handle, text, len(text), add_special, parse_special, tokens, capacity, n_tokens))
            n_found = n_tokens[0]
        return list(ffi.unpack(tokens, n_found)) if n_found else []

    def token_text(self, token: int, special: bool = False) -> bytes:
        handle, text = self._vocabulary(), ffi.new("corosrv_text *")
        check(lib.corosrv_token_text(handle, token, special, text))
        return bytes(ffi.buffer(text.data, text.size))

    def control_tokens(self) -> list[int]:
        """Returns the tokens that are no text, as those that begin a turn. Lets others run meanwhile."""
        return self._tokens_that(lib.corosrv_token_is_control)

    def end_tokens(self) -> list[int]:
        """Returns the tokens that end an answer. Lets others run meanwhile."""
        return self._tokens_that(lib.corosrv_token_is_end)

    def show_tokens(self, tokens: Sequence[int]) -> None:
        """Makes these control tokens part of the text of answers, but for those that end one.

        Raises Refused once an engine has had a task, and for ids that the model does not have.
        """
        message = ffi.new("char[]", MESSAGE_BYTES)
        handle, ids = self._vocabulary(), ffi.new("int32_t[]", list(tokens))
        check(lib.corosrv_show_tokens(handle, ids, len(tokens), message, MESSAGE_BYTES), message)

    def _tokens_that(self, are: Callable[[Any, int], int]) -> list[int]:
        size = ffi.new("int32_t *")
        check(lib.corosrv_vocabulary_size(self._vocabulary(), size))
        # It may be closed between two turns.
        return [token for token in Turns().among(range(size[0])) if are(self._vocabulary(), token)]


class NativeVocabulary(TokenCalls):
    """Handle of a corosrv_vocabulary that was loaded without the weights. Closed when dropped."""

    def __init__(self, options: Options) -> None:
        """Loads it; waits, without the GIL. Of the options the model alone counts."""
        borrowed = BorrowedOptions(options)
        vocabulary, message = ffi.new("corosrv_vocabulary **"), ffi.new("char[]", MESSAGE_BYTES)
        check(lib.corosrv_vocabulary_open(borrowed.struct, vocabulary, message, MESSAGE_BYTES), message)
        self._handle: Any = ffi.gc(vocabulary[0], lib.corosrv_vocabulary_close)

    def _vocabulary(self) -> Any:
        if self._handle is None:
            raise errors.UsedAfterClose("the vocabulary is closed; open another one")
        return self._handle

    def close(self) -> None:
        """Frees it, as soon as no call is under way in another thread. Twice is harmless."""
        self._handle = None


_FAULTS = {
    lib.COROSRV_JSON_DEPTH: "depth",
    lib.COROSRV_JSON_KEYS: "keys",
    lib.COROSRV_JSON_DIGITS: "digits",
    lib.COROSRV_JSON_VALUES: "values",
}


class NativeJsonScanner:
    """Scans JSON texts in the native core; see corosrv_json_limits in the C header."""

    def __init__(self, *, depth: int, keys: int, digits: int, values: int) -> None:
        limits = {"depth": depth, "keys": keys, "digits": digits, "values": values}
        self._limits = ffi.new("corosrv_json_limits *", limits)

    def fault(self, text: bytes) -> tuple[str, int] | None:
        """Returns the first limit that the text exceeds and the byte where it does, or None. Releases the GIL."""
        fault, at = ffi.new("int *"), ffi.new("size_t *")
        check(lib.corosrv_check_json(ffi.from_buffer(text), len(text), self._limits, fault, at))
        return (_FAULTS[fault[0]], at[0]) if fault[0] else None


_TYPICAL_BYTES = 64  # that a template adds to a message


@cache
def chat_template_names() -> tuple[str, ...]:
    """Returns the names of libllama's built-in chat templates, in the order of the alphabet."""
    n_names = ffi.new("size_t *")
    check(lib.corosrv_chat_template_names(ffi.NULL, 0, n_names))
    names = ffi.new("const char *[]", n_names[0])
    check(lib.corosrv_chat_template_names(names, len(names), n_names))
    return tuple(map(text_of, names))


def apply_chat_template(name: str, messages: Sequence[tuple[str, str]], add_prompt: bool) -> str:
    """Writes a conversation of roles and contents, which must not hold NUL, as the template of this name has it.

    `add_prompt`: the beginning of the assistant's next message follows. Raises Refused for an unknown name.
    """
    texts = [(ffi.new("char[]", role.encode()), ffi.new("char[]", content.encode())) for role, content in messages]
    structs, text_size = ffi.new("corosrv_chat_message[]", texts), ffi.new("size_t *")
    size, capacity = sum(len(role) + len(content) + _TYPICAL_BYTES for role, content in texts), 0
    while size > capacity:
        capacity = size
        text = ffi.new("char[]", capacity)
        arguments = (name.encode(), structs, len(texts), add_prompt, text, capacity, text_size)
        check(lib.corosrv_chat_template_apply(*arguments))
        size = text_size[0]
    return bytes(ffi.buffer(text, size)).decode()


class NativeSlotRequest:
    """Owns the handle of a corosrv_slot_request; closes it when dropped."""

    __slots__ = ("_handle", "fd")

    def __init__(self, handle: Any) -> None:
        self._handle = ffi.gc(handle, lib.corosrv_slot_request_close)
        self.fd: int = lib.corosrv_slot_request_fd(handle)

    def result(self) -> SlotContent:
        """Returns the content once `fd` is readable; it lives as long as this object. Raises why the request failed."""
        content, message = ffi.new("corosrv_slot_content *"), ffi.new("char[]", MESSAGE_BYTES)
        check(lib.corosrv_slot_request_result(self._handle, content, message, MESSAGE_BYTES), message)
        return SlotContent(
            _view(content.tokens, INT32_BYTES * content.n_tokens),
            _view(content.adapter_scales, FLOAT_BYTES * content.n_adapter_scales),
            _view(content.state, content.state_size),
        )

    def abandon(self) -> None:
        """Withdraws the request, unless it was begun or answered."""
        lib.corosrv_slot_request_abandon(self._handle)


def _view(pointer: Any, size: int) -> memoryview:
    return memoryview(ffi.buffer(pointer, size)) if size else memoryview(b"")


class BorrowedContent:
    """Hands a content to the C API: `struct` points into it, and lives as long as this object."""

    def __init__(self, content: SlotContent) -> None:
        tokens = ffi.from_buffer("int32_t[]", content.tokens)
        scales = ffi.from_buffer("float[]", content.adapter_scales)
        state = ffi.from_buffer("uint8_t[]", content.state)
        self._parts = (tokens, scales, state)
        self.struct = ffi.new("corosrv_slot_content *", (tokens, len(tokens), scales, len(scales), state, len(state)))


_STATES = {
    lib.COROSRV_STARTING: "starting",
    lib.COROSRV_READY: "ready",
    lib.COROSRV_FAILED: "failed",
    lib.COROSRV_STOPPED: "stopped",
}
_POOLING_NAMES = {number: name for name, number in POOLINGS.items()}
_INFO_TEXTS = ("ftype", "description", "chat_template", "rerank_template", "sampling")


class NativeEngine(TokenCalls):
    """Handle of a corosrv_engine. Knows the tokens of its model once that is loaded."""

    def __init__(self, options: Options) -> None:
        """Starts the decode thread, which loads the model; returns at once."""
        borrowed = BorrowedOptions(options)
        engine, message = ffi.new("corosrv_engine **"), ffi.new("char[]", MESSAGE_BYTES)
        check(lib.corosrv_engine_open(borrowed.struct, engine, message, MESSAGE_BYTES), message)
        self._handle = engine[0]
        self._lent: Any = None  # the engine's corosrv_vocabulary
        self.fd: int = lib.corosrv_engine_fd(self._handle)

    def _open_handle(self) -> Any:
        if self._handle is None:
            raise errors.UsedAfterClose("the engine is closed; open another one")
        return self._handle

    def _vocabulary(self) -> Any:
        handle = self._open_handle()
        if self._lent is None:
            vocabulary = ffi.new("corosrv_vocabulary **")
            check(lib.corosrv_engine_vocabulary(handle, vocabulary))
            self._lent = vocabulary[0]
        return self._lent

    def state(self) -> tuple[str, str]:
        """Returns starting, ready, failed or stopped, and the reason."""
        state, message = ffi.new("int *"), ffi.new("char[]", MESSAGE_BYTES)
        check(lib.corosrv_engine_state(self._open_handle(), state, message, MESSAGE_BYTES), message)
        return _STATES[state[0]], text_of(message)

    def loaded_part(self) -> float:
        """Returns the part of the load that is done, of 1; the model may be ready before."""
        return float(lib.corosrv_engine_loaded_part(self._open_handle()))

    def info(self) -> ModelInfo:
        info = ffi.new("corosrv_model_info *")
        check(lib.corosrv_engine_info(self._open_handle(), info))
        texts = {name: text_of(getattr(info, name)) for name in _INFO_TEXTS}
        texts["pooling"] = _POOLING_NAMES[info.pooling]
        return ModelInfo(**{name: getattr(info, name) for name in ModelInfo.__struct_fields__} | texts)

    def stats(self) -> DecodeStats:
        stats = ffi.new("corosrv_stats *")
        check(lib.corosrv_engine_stats(self._open_handle(), stats))
        histograms = {name: _histogram(getattr(stats, name)) for name in ("queue_wait", "ttft", "itl")}
        return DecodeStats(**{name: getattr(stats, name) for name in DecodeStats.__struct_fields__} | histograms)

    def slots(self, count: int) -> list[SlotCounters]:
        """Returns the first `count` slots, which have to be there, as of the last step."""
        slots = ffi.new("corosrv_slot[]", count)
        check(lib.corosrv_engine_slots(self._open_handle(), slots, count))
        # Spelled out: with hundreds of slots, looked at four times a second, names in a loop cost twice as much.
        return [
            SlotCounters(
                slot.task,
                slot.is_busy,
                slot.prompt_tokens,
                slot.computed_tokens,
                slot.cached_tokens,
                slot.generated_tokens,
                slot.has_new_line,
            )
            for slot in slots
        ]

    def submit(self, tasks: Sequence[Task]) -> NativeReader:
        """Queues all tasks or none. Lets others run meanwhile where there is much to do.

        Raises QueueFull, which says when there should be room.
        """
        borrowed = BorrowedTasks(tasks)
        reader, message = ffi.new("corosrv_reader **"), ffi.new("char[]", MESSAGE_BYTES)
        handle, n_tasks = self._open_handle(), len(tasks)
        submit = partial(lib.corosrv_submit, handle, borrowed.structs, n_tasks, reader, message, MESSAGE_BYTES)
        try:
            check(call_in_thread(submit) if take_long(tasks) else submit(), message)
        except errors.QueueFull as error:
            error.retry_after = errors.retry_seconds(self._seconds_to_room(n_tasks, tasks[0].owner))
            raise
        return NativeReader(reader[0])

    def _seconds_to_room(self, n_tasks: int, owner: int) -> float:
        seconds = ffi.new("double *")
        check(lib.corosrv_engine_retry_after(self._open_handle(), n_tasks, owner, seconds))
        return float(seconds[0])

    def request_slot(
        self, action: SlotAction, slot: int, owner: int, content: SlotContent | None = None
    ) -> NativeSlotRequest:
        """Asks for what `action` says, as soon as the slot is idle. Copies the content, without the GIL."""
        borrowed = None if content is None else BorrowedContent(content)
        struct = ffi.NULL if borrowed is None else borrowed.struct
        request, message = ffi.new("corosrv_slot_request **"), ffi.new("char[]", MESSAGE_BYTES)
        handle = self._open_handle()
        code = lib.corosrv_engine_request_slot(
            handle, action.value, slot, owner, struct, request, message, MESSAGE_BYTES
        )
        check(code, message)
        return NativeSlotRequest(request[0])

    def set_side_process(self, pidfd: int, share: float, itl_s: float, usual_s: float) -> None:
        """Stops a process while a step is computed, and continues it after each for `share` of the step's time.

        With a share of 0 it counts as one more sequence, gets more the longer it waits beyond its `usual_s` (0:
        unknown), and keeps no token back beyond `itl_s`. While there are no steps it runs all the time. Replaces the
        process before; -1 for none.
        """
        check(lib.corosrv_engine_set_side_process(self._open_handle(), pidfd, share, itl_s, usual_s))

    def side_process_held(self) -> float:
        """Returns the seconds for which such processes were stopped since the model was loaded."""
        held = ffi.new("double *")
        check(lib.corosrv_engine_side_process_held(self._open_handle(), held))
        return float(held[0])

    def recording_trouble(self) -> str:
        """Returns why nothing is recorded now; empty while it is, or is not to be."""
        message = ffi.new("char[]", MESSAGE_BYTES)
        code = lib.corosrv_engine_recording(self._open_handle(), message, MESSAGE_BYTES)
        return "" if code == lib.COROSRV_OK else text_of(message)

    def draft_trouble(self) -> str:
        """Returns why the draft model guesses no more; empty while it does, or there is none."""
        message = ffi.new("char[]", MESSAGE_BYTES)
        code = lib.corosrv_engine_draft(self._open_handle(), message, MESSAGE_BYTES)
        return "" if code == lib.COROSRV_OK else text_of(message)

    def replayed(self) -> tuple[tuple[int, int, int, int], str, bool]:
        """Returns steps, how many of them differ, texts, how many differ; new lines; whether the replay is over."""
        replay = ffi.new("corosrv_replay *")
        check(lib.corosrv_engine_replay(self._open_handle(), replay))
        counts = (replay.steps, replay.steps_differ, replay.texts, replay.texts_differ)
        return counts, text_of(replay.lines), bool(replay.is_over)

    def drain(self, message: str) -> None:
        """Ends every task with an error chunk of this message, and refuses new ones."""
        check(lib.corosrv_engine_drain(self._open_handle(), message.encode()))

    def close(self) -> None:
        """Waits for the step in progress. Twice is harmless."""
        handle, self._handle = self._handle, None
        if handle is not None:
            lib.corosrv_engine_close(handle)


def _histogram(c_histogram: Any) -> Histogram:
    return Histogram(tuple(c_histogram.buckets), c_histogram.sum)
