"""What is printed, cut into pieces to send: whole lines where there are any, and no line without end."""

from __future__ import annotations

import re

MAX_LINE = 4 << 20  # bytes; the rest of a longer line is left out
MAX_PIECE = 1 << 20  # bytes: as JSON it takes six times as much at worst, and has to fit into a frame
NOTICE = b" [TRUNCATED: the line is longer than 4 MiB]\n"

_LINE = re.compile(rb"[^\n\r]*[\n\r]|[^\n\r]+")  # a carriage return begins a line anew, as progress bars do
_SPLIT_CHARACTER = re.compile(rb"(?:[\xc0-\xff][\x80-\xbf]{0,2})\Z")


class Lines:
    """The bytes of one stream on their way. Sans-IO; what is not UTF-8 is replaced."""

    __slots__ = ("_held", "_is_cut", "_n_held", "_n_sent")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # the beginning of a line that nobody has seen yet
        self._n_held = 0
        self._n_sent = 0  # bytes of the current line that are out
        self._is_cut = False  # the rest of the current line is left out

    def feed(self, data: bytes) -> list[str]:
        """The pieces that can go out: up to the last line that ends, or all where too much is held back."""
        end = data.rfind(b"\n") + 1
        if end:
            return self._pieces(self._take() + data[:end], data[end:])
        if self._n_held + len(data) < MAX_PIECE:
            self._hold(data)
            return []
        whole = self._take() + data
        split = _SPLIT_CHARACTER.search(whole, max(0, len(whole) - 3))
        at = split.start() if split else len(whole)
        return self._pieces(whole[:at], whole[at:])

    def take_rest(self) -> list[str]:
        """The line that has no end yet."""
        return self._pieces(self._take(), b"")

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._n_held += len(data)

    def _take(self) -> bytes:
        held = b"".join(self._held)
        self._held.clear()
        self._n_held = 0
        return held

    def _pieces(self, ready: bytes, rest: bytes) -> list[str]:
        self._hold(rest)
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
        """What may go out of a line, or of the part of one that has arrived."""
        is_whole = line.endswith((b"\n", b"\r"))
        before, self._n_sent = self._n_sent, 0 if is_whole else self._n_sent + len(line)
        if self._is_cut:
            self._is_cut = not is_whole
            return b""
        if before + len(line) <= MAX_LINE:
            return line
        self._is_cut = not is_whole
        return line[: MAX_LINE - before] + NOTICE
