"""Cuts printed text into pieces to send: whole lines where possible, and no line without limit."""

from __future__ import annotations

import re

MAX_LINE = 4 << 20  # bytes; the rest of a longer line is left out
MAX_PIECE = 1 << 20  # bytes: as JSON it takes six times as much at worst, and has to fit into a frame
NOTICE = b" [TRUNCATED: the line is longer than 4 MiB]\n"

_LINE = re.compile(rb"[^\n\r]*[\n\r]|[^\n\r]+")  # a carriage return begins a line anew, as progress bars do
_SPLIT_CHARACTER = re.compile(rb"(?:[\xc0-\xff][\x80-\xbf]{0,2})\Z")


class Lines:
    """Splits the bytes of one stream into pieces of text. Sans-IO; invalid UTF-8 is replaced."""

    __slots__ = ("_held", "_is_cut", "_n_held", "_n_sent")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # the unsent beginning of a line
        self._n_held = 0
        self._n_sent = 0  # bytes of the current line that were sent
        self._is_cut = False  # the rest of the current line is left out

    def feed(self, data: bytes) -> list[str]:
        """Returns the pieces to send: up to the last end of line, or all if too much waits."""
        end = data.rfind(b"\n") + 1
        if end:
            return self._pieces(self._take() + data[:end], data[end:])
        if self._n_held + len(data) < MAX_PIECE:
            self._hold(data)
            return []
        text = self._take() + data
        split = _SPLIT_CHARACTER.search(text, max(0, len(text) - 3))
        end_of_text = split.start() if split else len(text)
        return self._pieces(text[:end_of_text], text[end_of_text:])

    def take_unfinished(self) -> list[str]:
        """Returns the line that has no end yet."""
        return self._pieces(self._take(), b"")

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._n_held += len(data)

    def _take(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        self._n_held = 0
        return data

    def _pieces(self, ready: bytes, remainder: bytes) -> list[str]:
        self._hold(remainder)
        if self._is_cut or self._n_sent + len(ready) > MAX_LINE:
            ready = b"".join(map(self._limited, _LINE.findall(ready)))
        elif ready:
            start = max(ready.rfind(b"\n"), ready.rfind(b"\r")) + 1
            self._n_sent = len(ready) - start + (0 if start else self._n_sent)
        if len(ready) <= MAX_PIECE:
            return [ready.decode("utf-8", "replace")] if ready else []
        text = ready.decode("utf-8", "replace")
        step = MAX_PIECE // 4  # characters, of at most four bytes
        return [text[at : at + step] for at in range(0, len(text), step)]

    def _limited(self, line: bytes) -> bytes:
        """Cuts a line, or the part of it that has arrived, to the limit."""
        is_complete = line.endswith((b"\n", b"\r"))
        n_sent, self._n_sent = self._n_sent, 0 if is_complete else self._n_sent + len(line)
        if self._is_cut:
            self._is_cut = not is_complete
            return b""
        if n_sent + len(line) <= MAX_LINE:
            return line
        self._is_cut = not is_complete
        return line[: MAX_LINE - n_sent] + NOTICE
