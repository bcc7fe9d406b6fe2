"""Scans a JSON text before anything is made of it."""

from __future__ import annotations

from corosrv.models.engine.binding.library import check, ffi, lib

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
