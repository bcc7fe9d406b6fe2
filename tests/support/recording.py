"""Records terminals while programs run in them, and draws what was seen as one SVG that moves."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Sequence
from html import escape

import pyte

COLUMNS = 118
TIMEOUT = 180.0  # seconds that a program gets to say what is waited for
LOOK_S, KEY_S = 0.08, 0.06  # between two looks at the screens, and between two keys
LONGEST_S = 0.8  # for which nothing moves: longer waits are cut
CELL, LINE, SIZE, EDGE = 7.22, 17, 12, 14  # of a character, a line, its letters and the border, in pixels
FONT = f"{SIZE}px ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace"
STYLE = f"text{{font:{FONT};fill:#e7e9ea;white-space:pre}}"


class Terminal:
    """A program in a terminal of its own, and what its screen shows."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], rows: int) -> None:
        self.rows = rows
        self.heard = ""  # since something was typed
        self._screen = pyte.Screen(COLUMNS, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), environ)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))

    def hear(self) -> None:
        """Reads what the program has written; returns at once."""
        while select.select([self._fd], [], [], 0)[0]:
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # it has ended
                return
            self._stream.feed(data)
            self.heard += data.decode("utf-8", "replace")

    def write(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    def close(self) -> None:
        os.kill(self.pid, signal.SIGHUP)
        os.close(self._fd)
        os.waitpid(self.pid, 0)


class Recording:
    """What several terminals showed, one above the other, and when."""

    def __init__(self) -> None:
        self._terminals: list[Terminal] = []
        self._seen: list[tuple[float, list[str]]] = []  # when, and all lines
        self._looked_at = time.monotonic()
        self._still_s = 0.0  # for which nothing has moved

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *error: object) -> None:
        for terminal in self._terminals:
            terminal.close()

    def add(self, terminal: Terminal) -> Terminal:
        self._terminals.append(terminal)
        return terminal

    def type(self, terminal: Terminal, keys: str) -> None:
        """Types keys as a person does, some a second."""
        for key in keys:
            terminal.heard = ""
            terminal.write(key)
            self.pause(KEY_S)

    def wait(self, terminal: Terminal, *words: str) -> None:
        """Waits until the program has said all words, one after the other, since a key was pressed."""
        deadline = time.monotonic() + TIMEOUT
        while not _holds(terminal.heard, words):
            assert time.monotonic() < deadline, f"{words} never came: {terminal.heard[-2000:]}"
            self.pause(LOOK_S)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)
        for terminal in self._terminals:
            terminal.hear()
        now = time.monotonic()
        passed = min(now - self._looked_at, max(LONGEST_S - self._still_s, 0.0))
        self._looked_at, at = now, (self._seen[-1][0] if self._seen else 0.0) + passed
        lines = [line for terminal in self._terminals for line in terminal.lines()]
        is_still = bool(self._seen) and self._seen[-1][1] == lines
        self._still_s = self._still_s + passed if is_still else 0.0
        self._seen.append((at, lines))

    def svg(self) -> str:
        """Draws every line for as long as it was seen. Begins anew when it has ended."""
        end = self._seen[-1][0]
        n_rows = sum(terminal.rows for terminal in self._terminals)
        width = int(COLUMNS * CELL) + 2 * EDGE
        drawn, top, first = [], EDGE, 0
        for terminal in self._terminals:
            height = terminal.rows * LINE + EDGE
            drawn.append(
                f'<rect x="4" y="{top - EDGE + 4}" width="{width - 8}" height="{height}" rx="8" fill="#16191c"/>'
            )
            for row in range(terminal.rows):
                y = top + (row + 1) * LINE - 4
                drawn += [_text(EDGE, y, *spell, end) for spell in self._spells(first + row)]
            top, first = top + height + 6, first + terminal.rows
        height = n_rows * LINE + len(self._terminals) * (EDGE + 6) + 8
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
            f"<style>{STYLE}</style>\n" + "\n".join(drawn) + "\n</svg>\n"
        )

    def _spells(self, row: int) -> list[tuple[str, float, float]]:
        """Returns what a row showed, each with when it came and went."""
        spells: list[tuple[str, float, float]] = []
        for at, lines in self._seen:
            if spells and spells[-1][0] == lines[row]:
                spells[-1] = (lines[row], spells[-1][1], at)
                continue
            if spells:
                spells[-1] = (*spells[-1][:2], at)
            spells.append((lines[row], at, at))
        return [spell for spell in spells if spell[0]]


def _holds(heard: str, words: Sequence[str]) -> bool:
    at = 0
    for word in words:
        if (found := heard.find(word, at)) < 0:
            return False
        at = found + len(word)
    return True


def _text(x: float, y: float, text: str, begin: float, until: float, end: float) -> str:
    """Draws a text that is seen from `begin` to `until`, of `end` seconds."""
    is_last = until >= end  # and is what a viewer shows that moves nothing
    times = [0.0, begin / end] + [until / end] * (not is_last)
    values = ("hidden", "visible", "hidden")[: len(times)]
    moves = (
        f'<animate attributeName="visibility" values="{";".join(values)}" calcMode="discrete" dur="{end:.1f}s" '
        f'keyTimes="{";".join(f"{part:.4f}" for part in times)}" repeatCount="indefinite"/>'
    )
    at_rest = "visible" if is_last else "hidden"
    return f'<text x="{x}" y="{y}" visibility="{at_rest}">{escape(text)}{moves}</text>'
