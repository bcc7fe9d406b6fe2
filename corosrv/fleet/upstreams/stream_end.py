"""Recognizes the last event of a stream, behind which its connection may stay open for as long as it likes."""

from __future__ import annotations

import re

_LONGEST_LINE = 64  # bytes; no line that marks an end is longer
_SPACED = re.compile(rb"\n\r?\n")

# A line of its own: in JSON, a line end inside a text is escaped.
_MARK = re.compile(rb"^(?:data: ?\[DONE\]|event: ?message_stop)\r?\n", re.MULTILINE)
_WORDS = (b"[DONE]", b"message_stop")


class StreamEnd:
    """Looks for `data: [DONE]`, by which OpenAI's streams end, and for `message_stop`, the last of Anthropic's."""

    __slots__ = ("_has_mark", "_line")

    def __init__(self) -> None:
        self._line = b""  # the beginning of a line whose end is still to come
        self._has_mark = False

    def feed(self, piece: bytes) -> bool:
        """Returns True once the last event is whole. Touches no socket."""
        text = self._line + piece
        if not self._has_mark:
            match = _MARK.search(text) if any(word in text for word in _WORDS) else None
            if match is None:
                self._line = text[text.rfind(b"\n") + 1 :]
                if len(self._line) > _LONGEST_LINE:
                    self._line = b"-"  # which begins no mark
                return False
            self._has_mark = True
            text = text[match.end() - 1 :]  # from the line's end on: the next empty line ends the event
        self._line = text[-2:]
        return _SPACED.search(text) is not None
