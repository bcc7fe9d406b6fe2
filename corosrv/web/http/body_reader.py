"""Reads request bodies: each whole, in time and within its limit, and all of them within a common budget.

Compressed bodies (gzip, and deflate in zlib's wrapping) are inflated piece by piece, so that a small one that becomes
large is stopped. `decode` makes the endpoint's type of a body; `compress` is for answers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import gevent
import msgspec
from flask import Request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge
from werkzeug.sansio.utils import get_content_length

from corosrv.base.errors import (
    BodyIncomplete,
    BodyTooLarge,
    BodyTooSlow,
    CorosrvError,
    InvalidJson,
    Refused,
    UnsupportedMedia,
)
from corosrv.base.processor import Turns
from corosrv.base.waits import call_in_thread, own_hub
from corosrv.formats import bodies
from corosrv.web.http.heap import BodyBudget, BodyShare
from corosrv.web.http.lean_flask import AnyRequest

# Types that clients send JSON under: curl calls everything form data unless told otherwise.
_PLAUSIBLE_TYPES = ("", "application/x-www-form-urlencoded", "text/plain", "application/octet-stream")

# A larger text is scanned in a thread.
_AT_ONCE = 65_536

T = TypeVar("T")


def decode(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes the request's body. Raises Refused, which names the field at fault, and UnsupportedMedia."""
    try:
        return bodies.decode(body, decoder)
    except InvalidJson:
        content_type = request.mimetype
        if content_type not in _PLAUSIBLE_TYPES and "json" not in content_type:
            raise UnsupportedMedia(f"the body must be JSON, not {content_type}") from None
        raise


def scan_in_thread(scan: bodies.Scanner) -> bodies.Scanner:
    """Makes the scanner leave large texts to a thread, where it runs without the GIL while the hub serves others."""

    def scan_waiting(text: bytes) -> bodies.Fault:
        return call_in_thread(scan, text) if len(text) > _AT_ONCE else scan(text)

    return scan_waiting


_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # of zlib, which says with them how the data are wrapped
ENCODINGS = frozenset(_WBITS)

_LEVEL = 1  # the others take several times as long for a few percent
_INPUT = 16_384  # bytes; zlib copies what it has not used of them
_INFLATED_PIECE = 65_536  # bytes of what is inflated or compressed at once


def inflate(body: bytes, encoding: str) -> Iterator[bytes]:
    """Yields a body piece by piece, so that the caller can stop a small one that becomes large.

    Raises Refused for data that are not of this encoding, or have no end.
    """
    inflater = zlib.decompressobj(_WBITS[encoding])
    try:
        for begin in range(0, len(body), _INPUT):
            unread = body[begin : begin + _INPUT]
            while unread:
                if inflater.eof:  # gzip may have several members
                    if encoding == "deflate":
                        raise Refused("the body has bytes behind its compressed data", None, "invalid_encoding")
                    inflater = zlib.decompressobj(_WBITS[encoding])
                yield from _inflate(inflater, unread)
                unread = inflater.unused_data
    except zlib.error:
        raise Refused(f"the body is not valid {encoding} data", None, "invalid_encoding") from None
    if not inflater.eof:
        raise Refused(f"the body's {encoding} data end early", None, "invalid_encoding")


def _inflate(inflater: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    piece = b""
    while not inflater.eof and (data or len(piece) == _INFLATED_PIECE):  # a full piece may not be all there is
        yield (piece := inflater.decompress(data, _INFLATED_PIECE))
        data = inflater.unconsumed_tail


@lru_cache(maxsize=64)
def chosen_encoding(accept_encoding: str) -> str | None:
    """Returns the encoding that a client asks for with this header: the one that it likes best, None if it has none."""
    best, best_weight = None, 0.0
    for member in accept_encoding.split(","):
        name, *parameters = (part.strip().lower() for part in member.split(";"))
        weight = _weight(parameters)
        if name in ENCODINGS and weight > best_weight:
            best, best_weight = name, weight
    return best


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def compress(pieces: Iterable[bytes | memoryview], encoding: str) -> list[bytes]:
    """Returns the compressed form of a body. Gives way to other greenlets."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WBITS[encoding])
    parts = (
        piece[begin : begin + _INFLATED_PIECE] for piece in pieces for begin in range(0, len(piece), _INFLATED_PIECE)
    )
    compressed = [compressor.compress(part) for part in Turns().among(parts)]
    return [*filter(None, compressed), compressor.flush()]


# In the WSGI environment: the server looks after the pace of the body itself, and does so better.
PACED = "corosrv.body_is_paced"
_SHARE = "corosrv.body_share"
_READ_AHEAD = "corosrv.body_read_ahead"
_KEPT = "corosrv.body_kept"
_PIECE = 128 << 10  # bytes


class BodyReader:
    """Reads the bodies of a process's requests. Each is released when its request is over."""

    def __init__(self, seconds: float = 30.0, budget: BodyBudget | None = None) -> None:
        """`seconds`: how long a body may take where the server does not look after that."""
        self._seconds = seconds
        self._budget = budget or BodyBudget(2**62)
        self.keeps_bodies = False  # as they were sent, for take_kept()

    def read(self, request: AnyRequest, limit: int) -> bytes:
        """Reads the whole body; waits for it.

        Raises BodyTooLarge, before reading where the body says that it is; TooManyBodies; BodyTooSlow; Refused for one
        that is not whole, and UnsupportedMedia for one that is compressed.
        """
        if "HTTP_CONTENT_ENCODING" in request.environ and _encoding(request):
            raise UnsupportedMedia("the body must not be compressed: send it without Content-Encoding")
        return self._read(request, limit)

    def pieces(self, request: AnyRequest, limit: int) -> Iterator[bytes]:
        """Yields the body piece by piece, and keeps none of it; waits for it. Raises what `read` does."""
        if _encoding(request):
            raise UnsupportedMedia("the body must not be compressed: send it without Content-Encoding")
        length = get_content_length(
            request.environ.get("CONTENT_LENGTH"), request.environ.get("HTTP_TRANSFER_ENCODING")
        )
        if (length or 0) > limit:
            raise BodyTooLarge(limit)
        request.max_content_length = limit + 1
        n_bytes = 0
        try:
            for piece in _pieces(request.environ["wsgi.input"], length) if length else _stream_pieces(request):
                n_bytes += len(piece)
                if n_bytes > limit:
                    raise BodyTooLarge(limit)
                yield piece
        except RequestEntityTooLarge:
            raise BodyTooLarge(limit) from None
        except (ClientDisconnected, OSError, ParseException) as error:
            raise _broken(error) from error
        if length is not None and n_bytes != length:
            raise _unequal(request, n_bytes, length)

    def read_ahead(self, request: AnyRequest, limit: int) -> bytes:
        """Reads the whole body as `read` does, which returns it once more afterwards. Waits."""
        return self.put_back(request, self.read(request, limit))

    def read_inflated(self, request: AnyRequest, limit: int) -> bytes:
        """Reads the whole body, which may be compressed, as `read` does; `limit` also holds for what it inflates to.

        Gives way to other greenlets. Raises what `read` does, and Refused for data that are not of their encoding.
        """
        encoding = _encoding(request)
        if encoding and encoding not in ENCODINGS:
            raise UnsupportedMedia("the body may be compressed with gzip or deflate, and with nothing else")
        body = self._read(request, limit)
        return self._inflate(request, body, encoding, limit) if encoding else body

    def take_kept(self, request: AnyRequest) -> bytes | None:
        """Returns the body as it was sent, which is kept no longer; None if nobody has read it, or none is kept."""
        body: bytes | None = request.environ.pop(_KEPT, None)
        return body

    def read_again(self, request: AnyRequest, body: bytes, limit: int) -> bytes:
        """Returns a body that was kept as `read_inflated` does."""
        self.put_back(request, body)
        return self.read_inflated(request, limit)

    def put_back(self, request: AnyRequest, body: bytes) -> bytes:
        """Has a body read once more, as it was sent; returns it."""
        request.environ[_READ_AHEAD] = body
        return body

    def read_as_sent(self, request: AnyRequest, limit: int) -> bytes:
        """Reads the whole body, compressed or not, as `read` does."""
        return self._read(request, limit)

    def _inflate(self, request: AnyRequest, body: bytes, encoding: str, limit: int) -> bytes:
        share: BodyShare = request.environ[_SHARE]
        pieces, n_bytes = [], 0
        for piece in Turns().among(inflate(body, encoding)):
            n_bytes += len(piece)
            if n_bytes > limit:
                raise BodyTooLarge(limit, is_read=True)
            share.grow(len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    def _read(self, request: AnyRequest, limit: int) -> bytes:
        environ = request.environ  # asked itself, for the request's own headers take longer
        ahead: bytes | None = environ.pop(_READ_AHEAD, None)
        if ahead is not None:
            return ahead
        body = self._read_whole(request, limit)
        if self.keeps_bodies:
            environ[_KEPT] = body
        return body

    def _read_whole(self, request: AnyRequest, limit: int) -> bytes:
        environ = request.environ
        length = get_content_length(environ.get("CONTENT_LENGTH"), environ.get("HTTP_TRANSFER_ENCODING"))
        if (length or 0) > limit:
            raise BodyTooLarge(limit)
        # One more than allowed: a chunked body that goes on beyond werkzeug's limit is cut there without a word.
        request.max_content_length = limit + 1
        try:
            if PACED in environ or own_hub() is None:
                body = self._read_counted(request, length)
            else:
                with gevent.Timeout(self._seconds, BodyTooSlow):
                    body = self._read_counted(request, length)
        except RequestEntityTooLarge:
            raise BodyTooLarge(limit) from None
        except (ClientDisconnected, OSError, ParseException) as error:
            raise _broken(error) from error
        if len(body) > limit:
            raise BodyTooLarge(limit)
        if length is not None and len(body) != length:
            raise _unequal(request, len(body), length)
        return body

    def _read_counted(self, request: AnyRequest, length: int | None) -> bytes:
        share = request.environ[_SHARE] = BodyShare(self._budget)
        if length and length <= _PIECE:
            share.grow(length)
            short: bytes = request.environ["wsgi.input"].read(length)
            return short
        # A stream of werkzeug's copies each piece twice, to stop at a length that is known.
        pieces = _pieces(request.environ["wsgi.input"], length) if length else _stream_pieces(request)
        parts = []
        # Counted as it comes, not as it is announced: a client that sends nothing takes nothing from others.
        for piece in pieces:
            share.grow(len(piece))
            parts.append(piece)
        return b"".join(parts)

    def hold(self, request: AnyRequest, n_bytes: int) -> None:
        """Counts bytes of an answer with the request's body, until the request is over. Raises TooManyBodies."""
        share: BodyShare = request.environ.setdefault(_SHARE, BodyShare(self._budget))
        share.grow(n_bytes)

    def release(self, request: AnyRequest) -> None:
        """Releases the request's body, if it had one. Calling it twice is harmless."""
        share = self.hand_over(request)
        if share is not None:
            share.close()

    def hand_over(self, request: AnyRequest) -> BodyShare | None:
        """Returns the request's share of the budget, which the caller closes instead of releasing the body."""
        share: BodyShare | None = request.environ.pop(_SHARE, None)
        return share


def _pieces(source: Any, length: int) -> Iterator[bytes]:
    """Yields the first `length` bytes, or what there is of them. Waits."""
    n_left = length
    while n_left and (piece := source.read(min(_PIECE, n_left))):
        n_left -= len(piece)
        yield piece


def _stream_pieces(request: AnyRequest) -> Iterator[bytes]:
    """Yields a body whose length nobody has announced. Waits."""
    return iter(lambda: request.stream.read(_PIECE), b"")


def _encoding(request: AnyRequest) -> str:
    encoding = request.environ.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    return "" if encoding == "identity" else encoding


def _broken(error: Exception) -> CorosrvError:
    """Makes the error for a body that was not read to its end."""
    if isinstance(error.__context__ or error, TimeoutError):
        return BodyTooSlow()
    return BodyIncomplete("the request body could not be read to its end")


def _unequal(request: AnyRequest, n_bytes: int, length: int) -> CorosrvError:
    """Makes the error for a body of another length than the request says."""
    if "form" in vars(request):  # parsed by somebody before us, who has the only copy
        return Refused("the body was read as a form: send it with 'Content-Type: application/json'", None, "form_body")
    return BodyIncomplete(f"the request body has {n_bytes} bytes where Content-Length promised {length}")
