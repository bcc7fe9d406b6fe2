"""The extension, loaded beside the libllama that it was built with, and what its codes are as exceptions."""

from __future__ import annotations

from typing import Any, NoReturn

from corosrv.base import errors
from corosrv.models.engine import libllama

libllama.open_library()
try:
    from corosrv._native import ffi, lib
except ImportError as error:
    raise errors.LibllamaError(f"corosrv's extension cannot be loaded ({error}); {libllama.REBUILD}") from error

__all__ = ["FINGERPRINT", "FLOAT_BYTES", "INT32_BYTES", "MESSAGE_BYTES", "check", "fail", "ffi", "lib", "text_of"]

# Hash of the llama.h and ggml.h that the extension was built with.
FINGERPRINT = bytes(ffi.string(lib.corosrv_llama_fingerprint())).decode()
libllama.check_fingerprint(FINGERPRINT)

FLOAT_BYTES = INT32_BYTES = 4
MESSAGE_BYTES = 512  # of a buffer for the words of an error

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


def check(code: int, message: Any = None) -> None:
    """Raises the error that a call's code stands for; `message` is the buffer with the core's words."""
    if code != lib.COROSRV_OK:
        fail(code, "" if message is None else text_of(message))


def fail(code: int, words: str = "") -> NoReturn:
    if code == lib.COROSRV_FORKED:
        raise errors.UsedAfterFork(_FORKED)
    raise _ERRORS[code](words or "the native call failed")


def text_of(c_string: Any) -> str:
    return bytes(ffi.string(c_string)).decode("utf-8", "replace")
