"""Makes server-sent events of a reader's items for as long as somebody reads, and records them where asked to."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from flask import Response

from corosrv.base.errors import CorosrvError, ReadTimeout
from corosrv.contracts.jobs import Reader
from corosrv.web.http.client import ClientWatch
from corosrv.web.http.message import DirectSender, direct_sender
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.reply import Flood, line

log = logging.getLogger("corosrv.http")

Item = TypeVar("Item")


class Encoder(Protocol[Item]):
    """Makes events of a reader's items."""

    failure: CorosrvError | None = None  # why the stream ends before its reader; its event came with the last items

    def encode(self, items: list[Item]) -> bytes: ...

    def encode_error(self, error: CorosrvError) -> bytes:
        """Makes the event of an error that the reader raised."""

    def close(self) -> None:
        """Ends the stream, whether its reader has ended or not. Most have nothing to end."""
        return


class Recording(Protocol):
    """Takes the copy of a stream. Called in the hub, so that nothing here may wait."""

    def add(self, piece: bytes) -> None:
        """Takes what is about to be sent."""

    def finish(self) -> None:
        """Ends a copy that has all of a stream that ended well. Called at most once, before the last piece is sent."""

    def drop(self) -> None:
        """Ends the copy of a stream that is over; called after `finish` as well."""


class RecordedEncoder(Generic[Item]):
    """Hands a copy of what an encoder makes to a recording. Comments, which no encoder makes, are not in it."""

    __slots__ = ("_encoder", "_reader", "_recording")

    def __init__(self, encoder: Encoder[Item], reader: Reader[Item], recording: Recording) -> None:
        self._encoder = encoder
        self._reader = reader
        self._recording = recording

    @property
    def failure(self) -> CorosrvError | None:
        return self._encoder.failure

    @failure.setter
    def failure(self, failure: CorosrvError | None) -> None:
        self._encoder.failure = failure

    def encode(self, items: list[Item]) -> bytes:
        piece = self._encoder.encode(items)
        self._recording.add(piece)
        if self._reader.is_finished and self._encoder.failure is None:
            self._recording.finish()
        return piece

    def encode_error(self, error: CorosrvError) -> bytes:
        return self._encoder.encode_error(error)

    def close(self) -> None:
        self._recording.drop()
        self._encoder.close()


_failed = Flood(log, "%d more streams ended in an error")

EVENTS, LINES = "text/event-stream", "application/x-ndjson"
# In the WSGI environment: the request's stream is written to a log, which its client reads, or another one.
LOGGED = "corosrv.stream_is_logged"
PING = b":\n\n"
# Stands before the next line: an empty line would be one that is no JSON.
BLANK = b" "
# What the system may keep for a client that reads slower than it is sent to. By itself it keeps megabytes, for each of
# those who stopped reading, while their jobs run on.
UNSENT_BYTES = 16_384


def watched(environ: dict[str, Any]) -> dict[str, Any]:
    """Returns the environment whose client has the stream cancelled when it leaves: none of a stream that is logged."""
    return {} if LOGGED in environ else environ


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits of a server's streams, and the counters of those that are open."""

    stats: HttpStats
    ping_interval: float = 15.0  # seconds of silence before a comment; 0 and less: none is sent
    write_timeout: float = 30.0  # seconds in which a client may accept nothing


class EventStream(Generic[Item]):
    """A WSGI body: what the encoder makes of the items, one piece for all that were unread.

    Owns the reader and the watch on the client; the server calls close() whatever happens. `first` is sent with the
    headers, so that a client that waits in the queue sees that it was taken. One that is logged has no client.
    """

    __slots__ = (
        "_encoder", "_first", "_is_closed", "_ping", "_ping_interval", "_sender", "_socket", "_stats", "_taken",
        "_timeout_before", "_watch", "_write_timeout", "has_failed", "on_close", "reader"
    )  # fmt: skip

    def __init__(
        self,
        environ: dict[str, Any],
        reader: Reader[Item],
        first: bytes,
        encoder: Encoder[Item],
        limits: StreamLimits,
        ping: bytes = PING,
    ) -> None:
        self._ping = ping
        self.reader = reader
        self._first = first
        self._taken: list[Item] = []  # before the first piece was sent
        self._encoder = encoder
        self._ping_interval = limits.ping_interval if limits.ping_interval > 0 else None
        self.has_failed = False  # it ended in an error
        self.on_close: Callable[[], None] | None = None  # called once, at its end
        is_logged, environ = LOGGED in environ, watched(environ)
        self._watch = ClientWatch(environ, reader.cancel)
        self._socket = environ.get("gunicorn.socket")
        self._timeout_before = None if self._socket is None else self._socket.gettimeout()
        self._write_timeout = limits.write_timeout
        self._stats = None if is_logged else limits.stats
        self._is_closed = False
        self._sender: DirectSender | None = None
        if self._stats is not None:
            self._stats.stream_opened()

    def wait_for_start(self, seconds: float, check: Callable[[list[Item]], None]) -> None:
        """Waits until there is something to send besides `first`, at most so long; see `check` for what came.

        Raises what `check` does, and what the reader does: nothing was sent yet, so the answer can have its status.
        The stream is closed then.
        """
        try:
            self._taken = self.reader.take(seconds)
            check(self._taken)
        except ReadTimeout:
            return
        except BaseException:
            self.close()
            raise

    def record(self, recording: Recording) -> None:
        """Hands a copy of all that is sent, but comments, to a recording. Call it before anything is sent."""
        recording.add(self._first)
        self._encoder = RecordedEncoder(self._encoder, self.reader, recording)

    def begin(self, start_response: Any) -> None:
        """Begins to send pieces the short way to the socket, as the headers are on their way."""
        self._sender = direct_sender(start_response)

    def __iter__(self) -> Iterator[bytes]:
        """Yields the pieces, for servers that send them the ordinary way. Waits."""
        self._begin_sending()
        yield self._begin_events()
        while not self._is_over:
            try:
                yield self._encoder.encode(self.reader.take(self._ping_interval))
            except ReadTimeout:
                yield self._ping
            except CorosrvError as error:
                yield self._end_in(error)
                return
        self._log_encoders_failure()

    def send_all(self, write: Callable[[bytes], object]) -> None:
        """Sends the pieces through `write` or past it, where the client's socket can be had. Waits; raises OSError.

        Thousands of streams wait in here. Each keeps its frames and what the calls have on the processor's stack, so
        no generator is between this and the server, and nothing that was sent has a name.
        """
        if self._sender is None:
            for piece in self:
                write(piece)
            return
        self._begin_sending()
        write(self._begin_events())
        while not self._is_over:
            try:
                # Sleeps while the chunks pass by, and wakes for what cannot be done in passing: waiting for a slow
                # client, whose chunks then stay in the reader up to its limit.
                self.reader.pump(self._pass_on, self._ping_interval)
                self._sender.flush()
            except ReadTimeout:
                write(self._ping)
            except CorosrvError as error:
                write(self._end_in(error))
                return
        self._log_encoders_failure()

    def _begin_sending(self) -> None:
        if self._socket is not None:
            # A client that accepts nothing for that long is as good as gone.
            self._socket.settimeout(self._write_timeout)
            _bound_unsent(self._socket)

    def _begin_events(self) -> bytes:
        taken, self._taken = self._taken, []
        return self._first + self._encoder.encode(taken) if taken else self._first

    @property
    def _is_over(self) -> bool:
        return self.reader.is_finished or self._watch.is_gone or self._encoder.failure is not None

    def _end_in(self, error: CorosrvError) -> bytes:
        """Makes the last piece of a stream that ends in an error."""
        self.has_failed = True
        self._log_unless_gone(error)
        return self._encoder.encode_error(error)

    def _log_encoders_failure(self) -> None:
        if self._encoder.failure is not None:
            self.has_failed = True
            self._log_unless_gone(self._encoder.failure)

    @property
    def is_abandoned(self) -> bool:
        """True when its client has left before its end."""
        return self._watch.is_gone

    def fills_silence(self, piece: bytes) -> bool:
        """Tells whether a piece behind the first is no more than a sign of life."""
        return piece is self._ping

    def cancel(self) -> None:
        """Ends the job, whose last event says so. Never waits."""
        self.reader.cancel()

    def _log_unless_gone(self, error: CorosrvError) -> None:
        if not self._watch.is_gone:  # who leaves has the job cancelled: nothing went wrong
            _failed.count(functools.partial(log.warning, "a stream ended in an error: %s", line(str(error))))

    def _pass_on(self, items: list[Item]) -> bool:
        """Sends what fits; True while more may follow."""
        assert self._sender is not None
        piece = self._encoder.encode(items)
        is_last = self.reader.is_finished
        return (not piece or self._sender.send(piece, is_last=is_last)) and not self._encoder.failure

    def close(self) -> None:
        """Ends the job if it is unfinished. Twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        self._watch.close()
        self.reader.close()
        self._encoder.close()
        if self._socket is not None:
            self._socket.settimeout(self._timeout_before)
        if self._stats is not None:
            self._stats.stream_closed()
        if self.on_close is not None:
            self.on_close()


def _bound_unsent(sending: socket.socket) -> None:
    if sending.family in (socket.AF_INET, socket.AF_INET6):
        sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


class _StreamResponse(Response):
    """An answer that hands its body the server's `start_response`, through which pieces can take the short way."""

    response: EventStream[Any]

    def __call__(self, environ: Any, start_response: Any) -> Any:
        body = super().__call__(environ, start_response)
        self.response.begin(start_response)
        return body


def response(stream: EventStream[Any], media_type: str = EVENTS) -> Response:
    """Returns the stream as an answer; passed through to the server untouched."""
    answer = _StreamResponse(stream, mimetype=media_type, direct_passthrough=True)
    answer.headers["Cache-Control"] = "no-cache"
    answer.headers["X-Accel-Buffering"] = "no"
    return answer
