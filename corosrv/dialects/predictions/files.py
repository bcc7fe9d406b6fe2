"""Files of outputs: each becomes a data URL, or is uploaded below the operator's URL and becomes its address there.

They come in a folder that the server owns. A large prediction is encoded as JSON in turns: in one go it would stop the
hub for seconds.
"""

from __future__ import annotations

import base64
import functools
import logging
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import gevent
import msgspec
import urllib3
from gevent.monkey import is_module_patched
from gevent.pool import Pool

from corosrv.base import __version__
from corosrv.base.errors import OutputFailed, RedirectRefused
from corosrv.base.outgoing import KEEPING_METHOD, Redirects
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs.setup import FileOutput, FileRef, OutputChunk

log = logging.getLogger("corosrv.predictions")

TURN = 256 << 10  # bytes, about, that are encoded before others have a turn

_MARK = b"\0"  # stands for a LargeJson in the text around it; JSON text has no such byte
_RAW_MARK = msgspec.Raw(_MARK)


class LargeJson:
    """A value that is JSON text already, in pieces: an output that came in a file."""

    __slots__ = ("n_bytes", "pieces")

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = tuple(pieces)
        self.n_bytes = sum(map(len, self.pieces))


def encode(value: Any) -> list[bytes]:
    """Encodes in one go; large values in it should be LargeJson. Never waits."""
    large: list[LargeJson] = []

    def mark(member: Any) -> msgspec.Raw:
        if not isinstance(member, LargeJson):
            raise NotImplementedError(f"{type(member).__name__} has no JSON form")
        large.append(member)
        return _RAW_MARK

    first, *texts = msgspec.json.encode(value, enc_hook=mark).split(_MARK)
    pieces = [first]
    for member, text in zip(large, texts, strict=True):
        pieces += member.pieces
        pieces.append(text)
    return pieces


def encode_in_turns(value: Mapping[str, Any], n_bytes: int) -> list[bytes]:
    """Encodes an object of about `n_bytes`; waits while others have their turns, if it is large."""
    if n_bytes < TURN:
        return encode(value)
    return encode({name: split_in_turns(member, n_bytes) for name, member in value.items()})


def split_in_turns(value: Any, n_bytes: int) -> Any:
    """Returns the value with its large texts and lists as LargeJson. `n_bytes`: its size, about.

    Waits while others have their turns, if it is large.
    """
    if n_bytes < TURN:
        return value
    if isinstance(value, str) and len(value) > TURN:
        return LargeJson(_in_turns(_text(value)))
    if isinstance(value, dict):
        return {name: split_in_turns(member, n_bytes) for name, member in value.items()}
    if isinstance(value, list) and value:
        # A copy: it may grow while others have their turns.
        return LargeJson(_in_turns(_list(list(value), max(1, TURN * len(value) // n_bytes))))
    return value


def _in_turns(pieces: Iterator[bytes]) -> Iterator[bytes]:
    n_since = 0
    for piece in pieces:
        yield piece
        n_since += len(piece)
        if n_since >= TURN:
            n_since = 0
            gevent.sleep(0)


def _text(text: str) -> Iterator[bytes]:
    yield b'"'
    for start in range(0, len(text), TURN):
        yield msgspec.json.encode(text[start : start + TURN])[1:-1]
    yield b'"'


def _list(members: list[Any], n_at_once: int) -> Iterator[bytes]:
    for start in range(0, len(members), n_at_once):
        *pieces, last = encode(members[start : start + n_at_once])
        pieces.append(last[:-1])  # all but the bracket
        pieces[0] = (b"," if start else b"[") + pieces[0][1:]
        yield from pieces
    yield b"]"


TIME_LIMIT = 25.0  # seconds for one file


class Uploads:
    """Puts files below one URL. Used by any number of greenlets at once."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._pool = urllib3.PoolManager(maxsize=8, headers={"User-Agent": f"corosrv/{__version__}"})

    def upload(self, path: str, name: str, mime_type: str) -> str:
        """Uploads a file and returns its address. Waits. Raises OutputFailed with the status or the cause."""
        too_long = OutputFailed(f"the output file {name} could not be uploaded within {TIME_LIMIT:g} s")
        with gevent.Timeout(TIME_LIMIT, too_long):
            if is_module_patched("socket"):  # then this very greenlet may wait for the network
                return self._send_along_redirects(path, name, mime_type)
            address: str = call_in_thread(self._send_along_redirects, path, name, mime_type)
            return address

    def _send_along_redirects(self, path: str, name: str, mime_type: str) -> str:
        url = urlunsplit(self._url._replace(path=f"{self._url.path.rstrip('/')}/{quote(name, safe='')}"))
        try:
            redirects = Redirects(url, KEEPING_METHOD)
            answer = self._send(url, path, mime_type)
            while redirects.follow(answer.status, answer.headers.get("Location")):
                answer = self._send(redirects.url, path, mime_type)
            return _final(answer, redirects.url, name)
        except urllib3.exceptions.HTTPError as error:
            raise OutputFailed(f"the output file {name} could not be uploaded: {type(error).__name__}") from error
        except OSError as error:
            raise OutputFailed(f"the output file {name} cannot be read: {error.strerror}") from error
        except RedirectRefused as error:
            raise OutputFailed(f"the output file {name} could not be uploaded: {error}") from error

    def _send(self, url: str, path: str, mime_type: str) -> urllib3.BaseHTTPResponse:
        headers = {**self._pool.headers, "Content-Type": mime_type, "Content-Length": str(os.path.getsize(path))}
        with open(path, "rb") as file:
            return self._pool.request(
                "PUT", url, body=file, headers=headers, timeout=TIME_LIMIT, retries=False, redirect=False
            )


def _final(answer: urllib3.BaseHTTPResponse, url: str, name: str) -> str:
    if not 200 <= answer.status < 300:
        raise OutputFailed(f"the output file {name} could not be uploaded: status {answer.status}")
    final = urlsplit(urljoin(url, answer.headers.get("Location", "")))
    return urlunsplit(final._replace(query="", fragment=""))


_LARGE = 1 << 20  # bytes; smaller files are read at once, larger ones in a thread
_PIECE = 3 << 18  # bytes; a multiple of three, so that the base64 of pieces is that of the whole
_AT_ONCE = 8  # files of one output


class Files:
    """Turns the messages of a worker into output values. Used by any number of greenlets at once."""

    def __init__(self, upload_url: str | None = None) -> None:
        """Uploads files below `upload_url`; without it they become data URLs."""
        self._uploads = Uploads(upload_url) if upload_url else None

    def resolve(self, message: OutputChunk | FileOutput, directory: str) -> Any:
        """Returns the value of a message, with addresses in place of its files; large ones are LargeJson.

        Waits for files. `directory`: the prediction's, whose `outputs` hold them. Calls may overlap; the caller keeps
        the values in order. Raises OutputFailed for a file that does not exist or cannot be uploaded.
        """
        if isinstance(message, OutputChunk):
            value = message.output
        elif message.kind == "oversized":
            value = _large_value(message, _path(directory, message.filename))
        else:
            return self._address(FileRef([], message.filename, message.mime_type), directory)
        if message.files:
            self._insert_all(value, message.files, directory)
        return value

    def _insert_all(self, value: Any, files: list[FileRef], directory: str) -> None:
        pool = Pool(_AT_ONCE)
        try:
            addresses = pool.imap(lambda file: self._attempt(file, directory), files)
            for file, address in zip(files, addresses, strict=True):
                if isinstance(address, OutputFailed):
                    raise address
                _insert(value, file.path, address)
        finally:
            pool.kill()

    def _attempt(self, file: FileRef, directory: str) -> str | LargeJson | OutputFailed:
        # Returned, since a greenlet that raises prints a traceback.
        try:
            return self._address(file, directory)
        except OutputFailed as error:
            return error

    def _address(self, file: FileRef, directory: str) -> str | LargeJson:
        path = _path(directory, file.filename)
        if self._uploads is not None:
            return self._uploads.upload(path, file.filename, file.mime_type)
        if _size(path) > _LARGE:
            address: LargeJson = call_in_thread(_large_data_url, path, file.mime_type)
            return address
        return _data_url(path, file.mime_type)


def weight(message: OutputChunk | FileOutput, value: Any) -> int:
    """Counts the bytes that stand for the message's files in `value`, which it was resolved to."""
    if isinstance(message, FileOutput) and message.kind != "oversized":
        return _length(value)
    n_oversized = message.n_bytes if isinstance(message, FileOutput) else 0
    return n_oversized + sum(_length(functools.reduce(operator.getitem, file.path, value)) for file in message.files)


def _length(address: str | LargeJson) -> int:
    return len(address) if isinstance(address, str) else address.n_bytes


def _large_value(message: FileOutput, path: str) -> Any:
    """Reads the value of a file that holds JSON; as LargeJson, unless other files are to be put in. Waits."""
    if _size(path) != message.n_bytes:
        raise OutputFailed(f"the output in {message.filename} cannot be read: it is not as the worker wrote it")
    if not message.files:
        return call_in_thread(lambda: LargeJson(_pieces(path)))
    try:
        return call_in_thread(lambda: msgspec.json.decode(b"".join(_pieces(path))))
    except msgspec.DecodeError as error:
        raise OutputFailed(f"the output in {message.filename} cannot be read: {error}") from error


def _path(directory: str, name: str) -> str:
    """Raises OutputFailed for a name that leads out of the directory: the worker runs other people's code."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OutputFailed("the worker named an output file outside of its directory")
    return os.path.join(directory, "outputs", name)


def _insert(value: Any, path: list[str | int], address: str) -> None:
    try:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = address
    except (LookupError, TypeError) as error:
        raise OutputFailed("the worker put a file at a place that the output does not have") from error


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _pieces(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            yield from iter(lambda: file.read(_PIECE), b"")
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> OutputFailed:
    return OutputFailed(f"the output file {os.path.basename(path)} cannot be read: {error.strerror}")


def _data_url(path: str, mime_type: str) -> str:
    return f"data:{mime_type};base64,{base64.b64encode(b''.join(_pieces(path))).decode()}"


def _large_data_url(path: str, mime_type: str) -> LargeJson:
    """Makes JSON text at once, piece by piece: one long step would stop the hub, in whatever thread it runs."""
    head = msgspec.json.encode(f"data:{mime_type};base64,")[:-1]
    return LargeJson([head, *map(base64.b64encode, _pieces(path)), b'"'])
