"""The lines of batches: reads and checks those of requests, and writes and repairs those of answers.

Lines are read one at a time, and each has a limit, so that no file has to fit into memory. What reads files waits for
the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from corosrv.base.errors import Refused, SettingsError
from corosrv.contracts.jobs.job import new_id
from corosrv.dialects.openai.batches.answer_types import ENDPOINTS, MOST_TEXT, BatchFault
from corosrv.formats import bodies

MOST_LINES = 50_000  # of a batch
MOST_FAULTS = 100  # that a batch tells
_SKIPPED = 65_536  # bytes that are read at once of a line which is too large
_SLICE_LINES, _SLICE_BYTES = 500, 1 << 20  # that are checked or read in one turn


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    stream: Any = None
    background: Any = None


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")  # no string of JSON has them
_line = msgspec.json.Decoder(_Line)
_body = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request of a batch."""

    custom_id: str
    url: str
    body: bytes


def parse(text: bytes, endpoint: str | None) -> RequestLine:
    """Reads a line; `endpoint`: the only one that it may name, None: any. Raises Refused."""
    line = bodies.decode_unscanned(text, _line)
    if not 0 < len(line.custom_id) <= MOST_TEXT:
        raise Refused(f"custom_id: must have 1 to {MOST_TEXT} characters", "custom_id", "invalid_custom_id")
    if line.method != "POST":
        raise Refused(f"method: must be POST, not {line.method[:40]!r}", "method", "invalid_method")
    if line.url not in (ENDPOINTS if endpoint is None else (endpoint,)):
        allowed = endpoint or ", ".join(ENDPOINTS)
        raise Refused(f"url: must be {allowed}, not {line.url[:80]!r}", "url", "invalid_url")
    body = bytes(line.body)
    members = bodies.decode_unscanned(body, _body)
    for name in ("stream", "background"):
        if getattr(members, name) not in (None, False):
            raise Refused(f"body.{name}: lines of a batch have no streams", f"body.{name}", "unsupported_parameter")
    return RequestLine(line.custom_id, line.url, body)


def request_text(custom_id: str, url: str, body: msgspec.Raw) -> bytes:
    """Makes a line of a request, whose body may have line breaks. Raises nothing: `parse` checks it."""
    line = _Line(custom_id, "POST", url, body)
    return msgspec.json.encode(line).translate(_ONE_LINE) + b"\n"


def numbered_lines(file: BinaryIO, most_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yields the lines of a file with their numbers, from 1 on; None for one that is too large. Skips empty ones."""
    number = 0
    while text := file.readline(most_bytes + 1):
        number += 1
        if len(text) > most_bytes and not text.endswith(b"\n"):
            while text and not text.endswith(b"\n"):
                text = file.readline(_SKIPPED)
            yield number, None
        elif text.strip():
            yield number, text


class LineReader:
    """Reads the requests of a file slice by slice."""

    def __init__(self, path: Path, most_bytes: int, endpoint: str | None) -> None:
        """`most_bytes`: of one line. Raises OSError."""
        self._file = path.open("rb")
        self._most_bytes = most_bytes
        self._endpoint = endpoint
        self._lines = numbered_lines(self._file, most_bytes)

    def next_slice(self) -> list[tuple[int, RequestLine | Refused]]:
        """Returns the next lines with their numbers, or why they are none; an empty list at the end."""
        found: list[tuple[int, RequestLine | Refused]] = []
        n_bytes = 0
        for number, text in self._lines:
            found.append((number, self._parse(text)))
            n_bytes += len(text or b"")
            if len(found) >= _SLICE_LINES or n_bytes >= _SLICE_BYTES:
                break
        return found

    def _parse(self, text: bytes | None) -> RequestLine | Refused:
        if text is None:
            return Refused(f"the line has more than {self._most_bytes} bytes", None, "line_too_large")
        try:
            return parse(text, self._endpoint)
        except Refused as refused:
            return refused

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class LineCheck:
    """Checks all lines of a batch before one of them runs."""

    most_lines: int = MOST_LINES
    n_lines: int = 0
    faults: list[BatchFault] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """True when no more lines need to be read: the batch fails."""
        return len(self.faults) >= MOST_FAULTS or self.n_lines > self.most_lines

    def add(self, lines: list[tuple[int, RequestLine | Refused]]) -> None:
        for number, line in lines:
            self.n_lines += 1
            if self.is_full:
                break
            if isinstance(line, Refused):
                code = line.code or "invalid_request"
                self.faults.append(BatchFault(code, str(line), line.param, number))
            elif line.custom_id in self._ids:
                words = f"custom_id: {line.custom_id!r} is in an earlier line, too"
                self.faults.append(BatchFault("duplicate_custom_id", words, "custom_id", number))
            else:
                self._ids.add(line.custom_id)

    def finish(self) -> None:
        """Adds what only the whole file tells."""
        if self.n_lines > self.most_lines:
            self.faults.append(BatchFault("too_many_lines", f"a batch has at most {self.most_lines} lines"))
        elif not self.n_lines:
            self.faults.append(BatchFault("empty_file", "the file has no lines"))


class LineResponse(msgspec.Struct):
    """An answer as a line of results has it."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    """A reason why a line has no answer."""

    code: str
    message: str


class LineResult(msgspec.Struct):
    """A line of results."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None


class _ResultStatus(msgspec.Struct):
    status_code: int


class _KnownResult(msgspec.Struct):
    custom_id: str
    response: _ResultStatus | None


_known_result = msgspec.json.Decoder(_KnownResult)
_BEGIN = b'{"id":"batch_req_'  # of every line of results
# Why lines have not run, by how their batch has ended.
NOT_RUN = {
    "expired": LineError("batch_expired", "the completion window was over before this line could run"),
    "cancelled": LineError("batch_cancelled", "the batch was cancelled before this line had its answer"),
}


BROKEN = "results_broken"  # why a batch has failed whose results somebody has overwritten


def is_good(status: int) -> bool:
    return 200 <= status < 300


def result(custom_id: str, response: LineResponse | None, error: LineError | None = None) -> bytes:
    return msgspec.json.encode(LineResult(new_id("batch_req_"), custom_id, response, error)) + b"\n"


class ResultFile:
    """Lines of results, in the order in which they came; what is in it is done. A killed process may leave half a line,
    which is cut off when the file is opened again. Belongs to one process, which has a lock."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and SettingsError for a file of something else."""
        self._path = path
        self.done: set[str] = set()
        self.n_failed = 0
        self.n_not_run = 0  # of those that failed
        self._n_bytes = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._repair()
        except BaseException:
            os.close(self._fd)
            raise

    def _repair(self) -> None:
        with open(self._fd, "rb", closefd=False) as file:
            for text in file:
                if text.endswith(b"\n"):
                    self._add_known(text)
                    self._n_bytes += len(text)
                elif text[: len(_BEGIN)] != _BEGIN[: len(text)] and text.strip(b"\0"):
                    raise self._other_file()
        os.ftruncate(self._fd, self._n_bytes)

    def _add_known(self, text: bytes) -> None:
        try:
            known = _known_result.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            raise self._other_file() from None
        self.done.add(known.custom_id)
        self.n_failed += known.response is None or not is_good(known.response.status_code)
        self.n_not_run += known.response is None

    def _other_file(self) -> SettingsError:
        return SettingsError(f"{self._path} has lines that are no results of a batch: name another file")

    @property
    def n_lines(self) -> int:
        return len(self.done)

    def add(self, custom_id: str, line: bytes, is_failed: bool = False, has_run: bool = True) -> None:
        """Appends a line. Raises OSError, and then has nothing of it."""
        try:
            view = memoryview(line)
            while view:
                n_written = os.pwrite(self._fd, view, self._n_bytes + len(line) - len(view))
                view = view[n_written:]
        except OSError:
            os.ftruncate(self._fd, self._n_bytes)
            raise
        self._n_bytes += len(line)
        self.done.add(custom_id)
        self.n_failed += is_failed
        self.n_not_run += not has_run

    def close(self) -> None:
        """Closes the file. Twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
