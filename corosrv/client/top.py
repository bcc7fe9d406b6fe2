"""`corosrv top`: a server at work, in a terminal. Reads GET /v1/live, and draws each frame over the one before.

Depends on the standard library alone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from corosrv.base.errors import CorosrvError
from corosrv.client.http import ServerAddress, blocking_connection, event_data

PATH = "/v1/live"
TIMEOUT = 15.0  # seconds without a frame
MAX_LINE = 4 << 20  # bytes of one frame
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before the next try to connect
_MARKS = {"idle": "·", "reading": "▒", "decoding": "█", "paused": "▚"}
_COLOURS = {"idle": "90", "reading": "34", "decoding": "36", "paused": "33"}
_MAX_LANES = 32
_LABELS = 12  # columns of a label
_CLEAR_REST = "\x1b[K"
_BLOCKS = " ▁▂▃▄▅▆▇█"


class NoLivePicture(CorosrvError):
    """The server gives no frames, and says why; asking again may help where `may_retry`."""

    def __init__(self, reason: str, *, may_retry: bool = True) -> None:
        super().__init__(reason)
        self.may_retry = may_retry


def frames(address: ServerAddress, key: str) -> Iterator[dict[str, Any]]:
    """Yields the frames of one connection, until the server ends it. Raises NoLivePicture."""
    with _answer(address, key) as answer:
        yield from (_decode(data) for _, data in event_data(answer, MAX_LINE))


def single_frame(address: ServerAddress, key: str) -> dict[str, Any]:
    """Returns one frame. Raises NoLivePicture."""
    with _answer(address, key, "?frames=1") as answer:
        return _decode(answer.read(MAX_LINE))


@contextlib.contextmanager
def _answer(address: ServerAddress, key: str, query: str = "") -> Iterator[http.client.HTTPResponse]:
    try:
        connection = blocking_connection(address, TIMEOUT)
        try:
            yield _ask(connection, address, key, query)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise NoLivePicture(f"no answer from {address.netloc}: {error or type(error).__name__}") from None


def _ask(
    connection: http.client.HTTPConnection, address: ServerAddress, key: str, query: str
) -> http.client.HTTPResponse:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection.request("GET", f"{address.prefix}{PATH}{query}", headers=headers)
    answer = connection.getresponse()
    if answer.status != 200:
        words = _reason(answer.read(65_536))
        raise NoLivePicture(
            f"{address.netloc} answers {answer.status}{words and ': '}{words}", may_retry=answer.status >= 502
        )
    return answer


def _reason(body: bytes) -> str:
    try:
        return printable(str(json.loads(body)["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return ""


def _decode(data: bytes) -> dict[str, Any]:
    try:
        frame = json.loads(data)
    except ValueError:
        raise _no_frame() from None
    if not isinstance(frame, dict):
        raise _no_frame()
    return {name: _printable_within(value) for name, value in frame.items()}


def _no_frame() -> NoLivePicture:
    return NoLivePicture("what came is no frame: is this a corosrv server?", may_retry=False)


def printable(text: str) -> str:
    """Returns a server's text without what would steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:120])


def _printable_within(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): _printable_within(member) for name, member in value.items()}
    return [_printable_within(member) for member in value] if isinstance(value, list) else value


def _short(value: float) -> str:
    return f"{value / 1e6:.1f}M" if value >= 1e6 else f"{value / 1e3:.1f}k" if value >= 1e4 else f"{value:.0f}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items())


class LiveScreen:
    """Makes lines of text from frames, and remembers the lanes of the last ones. Touches no terminal.

    The frames' texts are shown as they are: they have to be plain.
    """

    def __init__(self, name: str, has_colours: bool) -> None:
        """`name`: of the server, for the first line."""
        self._name = name
        self._has_colours = has_colours
        self._lanes: dict[tuple[str, int], deque[str]] = {}
        self._written: deque[float] = deque(maxlen=240)
        self._lags: deque[float] = deque(maxlen=240)

    def lines(self, frame: dict[str, Any], width: int, height: int) -> list[str]:
        """Notes a frame, and returns the lines that show it, no more than `height`. Raises NoLivePicture."""
        try:
            return [_cut(line, width) for line in self._lines(frame, width)[:height]]
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise _no_frame() from None

    def _lines(self, frame: dict[str, Any], width: int) -> list[str]:
        self._note(frame)
        engines = frame.get("engines", ())
        lines = [self._head(frame), *self._models(frame), ""]
        for engine in engines:
            lines += self._engine(engine, width)
        lines += [*self._queues(frame), *self._helpers(frame), *self._process(frame, width)]
        for engine in engines:  # last: they are what a small terminal has no room for
            lines += self._lanes_of(engine, width)
        return lines

    def _note(self, frame: dict[str, Any]) -> None:
        recents = [engine["recent"] for engine in frame.get("engines", ()) if "recent" in engine]
        self._written.append(sum(recent["written"] / max(recent["seconds"], 0.001) for recent in recents))
        self._lags.append(frame["hub"]["lag"])
        for engine in frame.get("engines", ()):
            for number, slot in enumerate(engine.get("slots", ())[:_MAX_LANES]):
                lane = self._lanes.setdefault((engine["model"], number), deque(maxlen=240))
                lane.append(slot["state"])

    def _head(self, frame: dict[str, Any]) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(frame["time"]))
        return self._bold(f"corosrv top  {self._name}  {frame['state']}  {at}")

    def _models(self, frame: dict[str, Any]) -> Iterator[str]:
        for model in frame.get("models", ()):
            if model["state"] != "loaded":
                yield f"{model['id']}: {model['state']}{_progress(model.get('progress', {}))}"

    def _engine(self, engine: dict[str, Any], width: int) -> Iterator[str]:
        recent, cache = engine.get("recent"), engine["cache"]
        waiting = f"{engine['waiting']} wait" if engine["waiting"] else "nothing waits"
        paused = f", {engine['paused']} paused" if engine["paused"] else ""
        yield self._bold(
            f"{engine['model']}: {engine['running']} of {engine['n_slots']} slots in use, {waiting}{paused}"
        )
        if recent is not None:
            yield from self._steps(recent, width)
        known = cache["hits"] + cache["misses"]
        share = f"{100 * cache['hits'] / known:.0f} % of prompts from it" if known else "no prompt yet"
        yield f"{'cache':{_LABELS}}{cache['entries']} prefixes, {cache['bytes'] / 1e6:.1f} MB, {share}"
        yield ""

    def _lanes_of(self, engine: dict[str, Any], width: int) -> Iterator[str]:
        slots = engine.get("slots", ())
        yield ""
        for number, slot in enumerate(slots[:_MAX_LANES]):
            yield self._lane(engine["model"], number, slot, width)
        if len(slots) > _MAX_LANES:
            yield f"{'':{_LABELS}}and {len(slots) - _MAX_LANES} more slots"

    def _steps(self, recent: dict[str, Any], width: int) -> Iterator[str]:
        seconds, steps = max(recent["seconds"], 0.001), recent["steps"]
        read = recent["reading"] / seconds
        yield (
            f"{'tokens':{_LABELS}}{_short(self._written[-1])}/s written, {_short(read)}/s of prompts read  "
            f"{_sparks(self._written, max(width - 60, 0))}"
        )
        if not steps:
            yield f"{'steps':{_LABELS}}none"
            return
        writing, reading = recent["decoding"] / steps, recent["reading"] / steps
        bar = self._bar(writing, reading, max(width - 74, 8))
        yield (
            f"{'steps':{_LABELS}}{_short(steps / seconds)}/s, {_time(recent['step_s'] / steps)} each: "
            f"{writing:.1f} streams write, {reading:.0f} tokens of prompts  {bar}"
        )

    def _bar(self, writing: float, reading: float, width: int) -> str:
        total = max(writing + reading, 1e-9)
        n = round(width * writing / total)
        return self._mark("decoding") * n + self._mark("reading") * (width - n)

    def _lane(self, model: str, number: int, slot: dict[str, Any], width: int) -> str:
        lane = list(self._lanes[model, number])[-max(width - _LABELS - 34, 8) :]
        what = "idle"
        if slot["state"] == "reading":
            what = f"reads {slot.get('read', 0)} of {slot.get('prompt', 0)}"
        elif slot["state"] != "idle":
            what = f"{slot['state']} {slot.get('written', 0)} tokens"
        return f"{f'slot {number}':{_LABELS}}{what:32}  {''.join(map(self._mark, lane))}"

    def _queues(self, frame: dict[str, Any]) -> Iterator[str]:
        for queue in frame.get("queues", ())[:8]:
            classes = ", ".join(f"{n} of class {name}" for name, n in queue["classes"].items())
            oldest = f", the first for {_time(queue['oldest'])}" if "oldest" in queue else ""
            yield (
                f"{'queue':{_LABELS}}{queue['key'] or 'any model'}: {queue['depth']} wait"
                f"{classes and f' ({classes})'}{oldest}; {queue['in_flight']} of {queue['permits']} permits in use"
            )

    def _helpers(self, frame: dict[str, Any]) -> Iterator[str]:
        for pool in frame.get("pools", ()):
            yield f"{'pool':{_LABELS}}{pool['name']}: {_counts(pool['workers'])}; {pool['restarts']} restarts"
        for one in frame.get("upstreams", ()):
            yield (
                f"{'upstream':{_LABELS}}{one['id']}: {one['state']}, runs {one['in_flight']} of "
                f"{one['concurrency']}, {one['ok']} answered, {one['failed']} failed"
            )
        for one in frame.get("encoders", ()):
            words = f"{one['model']}: {one['state']}, {one['active']} run, {one['queued']} wait"
            yield f"{'encoder':{_LABELS}}{words}"
        if predictor := frame.get("predictor"):
            yield f"{'predictor':{_LABELS}}{predictor['state']}, {predictor['running']} run"
        if grpc := frame.get("grpc"):
            yield f"{'gRPC':{_LABELS}}{grpc['state']}, {grpc['streams']} streams, {grpc['calls']} calls"

    def _process(self, frame: dict[str, Any], width: int) -> Iterator[str]:
        hub, web = frame["hub"], frame["http"]
        clients = f", {web['greenlets']} greenlets for {web['connections']} connections" if "greenlets" in web else ""
        yield f"{'HTTP':{_LABELS}}{web['streams']} streams, {web['answers']} answers{clients}, {web['watchers']} watch"
        yield (
            f"{'hub':{_LABELS}}late by {_time(hub['lag'])} at most; {hub['collections']} collections, the longest "
            f"{_time(hub['longest_collection'])}  {_sparks(self._lags, max(width - 74, 0))}"
        )

    def _mark(self, state: str) -> str:
        mark = _MARKS.get(state, "?")
        return f"\x1b[{_COLOURS[state]}m{mark}\x1b[0m" if self._has_colours and state in _COLOURS else mark

    def _bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._has_colours else text


def _progress(progress: Mapping[str, int]) -> str:
    return f", {100 * progress.get('bytes', 0) / progress['total']:.0f} %" if progress.get("total") else ""


def _sparks(values: Sequence[float], width: int) -> str:
    if not width:
        return ""
    most = max(max(values, default=0.0), 1e-9)
    return "".join(_BLOCKS[round(value / most * (len(_BLOCKS) - 1))] for value in list(values)[-width:])


def _cut(line: str, width: int) -> str:
    """Cuts a line to a number of columns; sequences that colour it take none."""
    kept, n_columns, place = [], 0, 0
    while place < len(line) and n_columns < width:
        end = line.index("m", place) + 1 if line[place] == "\x1b" else place + 1
        n_columns += line[place] != "\x1b"
        kept.append(line[place:end])
        place = end
    return "".join(kept) + ("\x1b[0m" if place < len(line) and "\x1b" in line else "")


def run(url: str, key: str, *, is_single: bool, out: TextIO | None = None) -> None:
    """Shows a server until Ctrl-C, or once. Connects again when the server has gone.

    Raises NoLivePicture where asking again is of no use, and Misuse for a URL that is none.
    """
    out = sys.stdout if out is None else out
    address = ServerAddress(url)
    is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    screen = LiveScreen(address.netloc, is_terminal and "NO_COLOR" not in os.environ)
    if is_single:
        _print(out, screen.lines(single_frame(address, key), _width(out), 1000))
        return
    try:
        if is_terminal:
            out.write("\x1b[?25l\x1b[2J")  # no cursor, an empty screen
        _watch(address, key, screen, out, is_terminal)
    except KeyboardInterrupt:
        pass
    finally:
        if is_terminal:
            out.write("\x1b[?25h\n")
            out.flush()


def _watch(address: ServerAddress, key: str, screen: LiveScreen, out: TextIO, is_terminal: bool) -> None:
    n_failures, printed_at = 0, 0.0
    while True:
        try:
            for frame in frames(address, key):
                n_failures = 0
                lines = screen.lines(frame, *(_size() if is_terminal else (_width(out), 1000)))
                if is_terminal:
                    _redraw(out, lines)
                elif time.monotonic() - printed_at >= 1:  # for people who read on, and files
                    printed_at = time.monotonic()
                    _print(out, [*lines, ""])
        except NoLivePicture as error:
            if not error.may_retry:
                raise
            _redraw(out, [str(error)]) if is_terminal else _print(out, [str(error)])
        time.sleep(PAUSES[min(n_failures, len(PAUSES) - 1)])
        n_failures += 1


def _size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns, size.lines - 1


def _width(out: TextIO) -> int:
    return shutil.get_terminal_size((100, 24)).columns if out.isatty() else 100


def _redraw(out: TextIO, lines: Sequence[str]) -> None:
    """Writes lines over those that stand there, and clears what is below."""
    out.write("\x1b[H" + "".join(f"{line}{_CLEAR_REST}\n" for line in lines) + "\x1b[J")
    out.flush()


def _print(out: TextIO, lines: Sequence[str]) -> None:
    out.write("".join(f"{line}\n" for line in lines))
    out.flush()
