"""Requests to a slot, and the content of slots on its way in and out."""

from __future__ import annotations

from typing import Any

from corosrv.models.engine.binding.library import FLOAT_BYTES, INT32_BYTES, MESSAGE_BYTES, check, ffi, lib
from corosrv.models.engine.binding.values import SlotContent


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
