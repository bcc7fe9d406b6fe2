"""Sends requests and follows their answers: the only sockets of the load. All of it waits through gevent's hub."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import gevent
import gevent.socket
import gevent.ssl
from gevent.hub import Waiter

from corosrv.base.errors import BenchError
from corosrv.client.bench.load.target import FailureKind, RequestOutcome, Target
from corosrv.client.bench.load.transcript import HttpAnswer, Malformed, Transcript, error_message

READ = 65_536  # bytes
ASK_TIMEOUT = 30.0  # seconds


class Client:
    """Asks one target. Any number of greenlets may use it at once."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._tls = gevent.ssl.create_default_context() if target.is_tls else None
        self._address = _resolve(target)
        self.open: set[Transcript] = set()

    def ask(
        self,
        request: bytes,
        tokens: int,
        began: float | None = None,
        is_arriving: bool = False,
        on_text: Callable[[], None] | None = None,
        pieces: list[str] | None = None,
    ) -> RequestOutcome:
        """Sends a request and follows its stream. `began`: when it was meant to begin, if that was earlier than now;
        `on_text` is called once, at the first text; `pieces` gets the text. Waits; never raises for what the server
        does."""
        began = monotonic() if began is None else began
        transcript = Transcript(tokens, pieces)
        self.open.add(transcript)
        limit = gevent.Timeout.start_new(self._timeout)
        try:
            self._follow(request, transcript, on_text)
        except gevent.Timeout as timeout:
            if timeout is not limit:
                raise
            transcript.fail(FailureKind.TIMEOUT, f"not over within {self._timeout:g} s")
        except OSError as error:
            transcript.fail(FailureKind.CONNECTION, error.strerror or str(error))
        finally:
            limit.close()
            self.open.discard(transcript)
        return transcript.outcome(began, monotonic(), is_arriving)

    def get(self, path: str) -> tuple[int, bytes]:
        """Returns status and body of a plain GET. Waits. Raises BenchError without an answer."""
        answer, body = HttpAnswer(), b""
        unreachable = BenchError(f"{self._target.url} cannot be reached: no answer within {ASK_TIMEOUT:g} s")
        try:
            with gevent.Timeout(ASK_TIMEOUT, unreachable), self._connect() as connected:
                connected.sendall(self._target.request("GET", path))
                while not answer.is_complete and (data := connected.recv(READ)):
                    body += answer.feed(data)
        except OSError as error:
            raise BenchError(f"{self._target.url} cannot be reached: {error.strerror or error}") from None
        except Malformed as error:
            raise BenchError(f"{self._target.url} is not an HTTP server: {error}") from None
        if answer.status >= 400:
            body = error_message(body).encode()
        return answer.status, body

    def _follow(self, request: bytes, transcript: Transcript, on_text: Callable[[], None] | None) -> None:
        with self._connect() as connected:
            connected.sendall(request)
            if on_text is not None:
                while not transcript.arrivals:
                    if transcript.feed(connected.recv(READ), monotonic()):
                        return
                on_text()
            if self._tls is None:
                _Follower(connected, transcript).run()
            else:
                while not transcript.feed(connected.recv(READ), monotonic()):
                    pass

    def _connect(self) -> gevent.socket.socket:
        family, address = self._address
        connected = gevent.socket.socket(family, gevent.socket.SOCK_STREAM)
        try:
            connected.connect(address)
            connected.setsockopt(gevent.socket.IPPROTO_TCP, gevent.socket.TCP_NODELAY, 1)
            if self._tls is not None:
                return self._tls.wrap_socket(connected, server_hostname=self._target.host)
        except BaseException:
            connected.close()
            raise
        return connected


class _Follower:
    """Reads a stream to its end in the hub's own greenlet: one persistent watcher and no switch for each event, which
    takes a fifth off what an event costs. TLS cannot be read so: what it has decrypted makes no socket readable."""

    def __init__(self, connected: gevent.socket.socket, transcript: Transcript) -> None:
        hub = gevent.get_hub()
        self._recv = connected._sock.recv
        self._feed = transcript.feed
        self._watcher = hub.loop.io(connected.fileno(), 1)
        self._over = Waiter(hub)

    def run(self) -> None:
        """Waits until the stream is over. Raises OSError."""
        try:
            self._watcher.start(self._read)
            self._over.get()
        finally:
            self._watcher.stop()
            self._watcher.close()

    def _read(self) -> None:
        try:
            is_over = self._feed(self._recv(READ), monotonic())
        except BlockingIOError:
            return
        except Exception as error:  # belongs to whoever waits, not to the hub
            self._watcher.stop()
            self._over.throw(error)
            return
        if is_over:
            self._watcher.stop()
            self._over.switch(None)


def _resolve(target: Target) -> tuple[int, tuple[str, int]]:
    """Looks up family and address once: a load should not measure the resolver."""
    try:
        family, _, _, _, address = gevent.socket.getaddrinfo(target.host, target.port, type=gevent.socket.SOCK_STREAM)[
            0
        ]
    except OSError as error:
        raise BenchError(f"{target.url} cannot be reached: {error.strerror or error}") from None
    return family, address
