"""The native engine: opened, asked, and given tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from corosrv.base import errors
from corosrv.base.processor import Turns
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs.stats import DecodeStats, Histogram
from corosrv.models.engine.binding.library import MESSAGE_BYTES, check, ffi, lib, text_of
from corosrv.models.engine.binding.options import POOLINGS, BorrowedOptions
from corosrv.models.engine.binding.reader import NativeReader
from corosrv.models.engine.binding.slot_request import BorrowedContent, NativeSlotRequest
from corosrv.models.engine.binding.tasks import BorrowedTasks, take_long
from corosrv.models.engine.binding.values import ModelInfo, Options, SlotAction, SlotContent, SlotCounters, Task

_STATES = {
    lib.COROSRV_STARTING: "starting",
    lib.COROSRV_READY: "ready",
    lib.COROSRV_FAILED: "failed",
    lib.COROSRV_STOPPED: "stopped",
}
_POOLING_NAMES = {number: name for name, number in POOLINGS.items()}
_INFO_TEXTS = ("ftype", "description", "chat_template", "rerank_template")


class NativeEngine:
    """Handle of a corosrv_engine."""

    def __init__(self, options: Options) -> None:
        """Starts the decode thread, which loads the model; returns at once."""
        borrowed = BorrowedOptions(options)
        engine, message = ffi.new("corosrv_engine **"), ffi.new("char[]", MESSAGE_BYTES)
        check(lib.corosrv_engine_open(borrowed.struct, engine, message, MESSAGE_BYTES), message)
        self._handle = engine[0]
        self.fd: int = lib.corosrv_engine_fd(self._handle)

    def _open_handle(self) -> Any:
        if self._handle is None:
            raise errors.UsedAfterClose("the engine is closed; open another one")
        return self._handle

    def state(self) -> tuple[str, str]:
        """starting, ready, failed or stopped; and the reason."""
        state, message = ffi.new("int *"), ffi.new("char[]", MESSAGE_BYTES)
        check(lib.corosrv_engine_state(self._open_handle(), state, message, MESSAGE_BYTES), message)
        return _STATES[state[0]], text_of(message)

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
        """The first `count`, which have to be there, as of the last step."""
        slots = ffi.new("corosrv_slot[]", count)
        check(lib.corosrv_engine_slots(self._open_handle(), slots, count))
        return [
            SlotCounters(**{name: getattr(slot, name) for name in SlotCounters.__struct_fields__}) for slot in slots
        ]

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids; takes time in proportion to the text, without the GIL."""
        n_tokens, n_found = ffi.new("size_t *"), len(text) + 2
        handle, capacity = self._open_handle(), 0
        # Nearly every text has at most that many; some vocabularies make several tokens of a byte: those ask twice.
        while n_found > capacity:
            capacity = n_found
            tokens = ffi.new("int32_t[]", capacity)
            check(lib.corosrv_tokenize(handle, text, len(text), add_special, parse_special, tokens, capacity, n_tokens))
            n_found = n_tokens[0]
        return list(ffi.unpack(tokens, n_found)) if n_found else []

    def token_text(self, token: int, special: bool = False) -> bytes:
        text = ffi.new("corosrv_text *")
        check(lib.corosrv_token_text(self._open_handle(), token, special, text))
        return bytes(ffi.buffer(text.data, text.size))

    def control_tokens(self) -> list[int]:
        """Returns the tokens that are no text, as those that begin a turn. Lets others run meanwhile."""
        return self._tokens_that(lib.corosrv_token_is_control)

    def end_tokens(self) -> list[int]:
        """Returns the tokens that end an answer. Lets others run meanwhile."""
        return self._tokens_that(lib.corosrv_token_is_end)

    def show_tokens(self, tokens: Sequence[int]) -> None:
        """Makes these control tokens part of the text of answers, but for those that end one.

        Raises Refused once a task was submitted, and for ids that the model does not have.
        """
        message = ffi.new("char[]", MESSAGE_BYTES)
        handle, ids = self._open_handle(), ffi.new("int32_t[]", list(tokens))
        check(lib.corosrv_engine_show_tokens(handle, ids, len(tokens), message, MESSAGE_BYTES), message)

    def _tokens_that(self, are: Callable[[Any, int], int]) -> list[int]:
        # The engine may be closed between two turns.
        tokens = Turns().among(range(self.info().n_vocab))
        return [token for token in tokens if are(self._open_handle(), token)]

    def submit(self, tasks: Sequence[Task]) -> NativeReader:
        """Queues all tasks or none. Lets others run meanwhile where there is much to do."""
        borrowed = BorrowedTasks(tasks)
        reader, message = ffi.new("corosrv_reader **"), ffi.new("char[]", MESSAGE_BYTES)
        handle, n_tasks = self._open_handle(), len(tasks)
        submit = partial(lib.corosrv_submit, handle, borrowed.structs, n_tasks, reader, message, MESSAGE_BYTES)
        check(call_in_thread(submit) if take_long(tasks) else submit(), message)
        return NativeReader(reader[0])

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
