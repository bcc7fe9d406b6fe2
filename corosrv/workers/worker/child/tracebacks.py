"""Errors of user code as text: for clients a line, for logs the traceback."""

from __future__ import annotations

from corosrv.base.errors import CorosrvError

MAX_ERROR = 100_000  # characters of a message, and of a traceback
_OURS = ("corosrv.", "importlib.", "asyncio.")  # modules whose frames are of no use to an author


def describe(error: BaseException) -> str:
    """Formats an error as `TypeName: message`, valid in JSON and short enough for a frame."""
    message = message_of(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text.encode("utf-8", "replace").decode()


def message_of(error: BaseException) -> str:
    """Returns the message of an error, valid as UTF-8 and short enough for a frame."""
    try:
        message = str(error)
    except Exception as another:  # the author's own __str__
        message = f"<{type(another).__name__} in __str__>"
    if len(message) > MAX_ERROR:
        message = f"{message[:MAX_ERROR]} [TRUNCATED]"
    return message.encode("utf-8", "replace").decode()


def trace(error: BaseException) -> str:
    """Formats the traceback from the first frame of user code on; of an error of ours, the message, which says all."""
    return f"{describe(error)}\n" if isinstance(error, CorosrvError) else trace_frames(error)


def trace_frames(error: BaseException) -> str:
    """Formats the traceback from the first frame of user code on."""
    import traceback  # not at start: most predictions go well

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    text = text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} [TRUNCATED]\n"
    return text.encode("utf-8", "replace").decode()
