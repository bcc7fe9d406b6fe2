"""One round of load on one server, from this process, and the clients that send its requests and follow the answers.

Theirs are the only sockets of the load. All of it waits through gevent's hub.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

import gevent
import gevent.socket
import gevent.ssl
from gevent import GreenletExit
from gevent.event import Event
from gevent.hub import Waiter
from gevent.pool import Group

from corosrv.base.errors import BenchError
from corosrv.client.bench import plan as mixes
from corosrv.client.bench.plan import BenchPlan, Mix, Point, poisson, share
from corosrv.client.bench.target import FailureKind, RequestOutcome, Target
from corosrv.client.bench.transcript import HttpAnswer, Malformed, Transcript, error_message

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


GOODPUT_SHARE = 0.99  # of the requests, which keep the limits
PROGRESS_INTERVAL = 0.25  # seconds


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one process in one round: part `part` of `parts`."""

    target: Target
    plan: BenchPlan
    point: Point
    number: int  # of the round
    part: int = 0
    parts: int = 1


@dataclass(slots=True)
class Counts:
    """The progress of a round."""

    done: int = 0
    failed: int = 0
    open: int = 0
    events: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.done + other.done, self.failed + other.failed, self.open + other.open, self.events + other.events
        )


@dataclass(frozen=True, slots=True)
class Yield:
    """The outcomes of a process's work, and the processor time that producing the load took."""

    outcomes: list[RequestOutcome] = field(default_factory=list)
    cpu: float = 0.0  # seconds of processor time
    is_interrupted: bool = False


class Load:
    """Runs one round. Made before it begins, so that preparing it is not measured."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._client = Client(work.target, work.plan.timeout)
        self._outcomes: list[RequestOutcome] = []
        self._counts = Counts()
        self._greenlets = Group()
        self._is_interrupted = False
        self._n_late = 0
        self._numbers = share(work.plan.n_requests(work.point), work.part, work.parts)
        is_arriving = work.plan.mix is Mix.ARRIVALS
        self._requests = {i: self._request(i, is_arriving) for i in self._numbers}

    def run(self, begin: float, on_progress: Callable[[Counts], None]) -> Yield:
        """Begins at `begin` of the monotonic clock, and waits until the last answer is over."""
        time.sleep(max(0.0, begin - monotonic()))
        cpu = time.process_time()
        if not self._is_interrupted:
            ticker = gevent.spawn(self._tell, on_progress)
            self._greenlets.spawn(self._loop(), begin)
            self._greenlets.join()
            ticker.kill()
        on_progress(self.counts())
        return Yield(self._outcomes, time.process_time() - cpu, self._is_interrupted)

    @contextlib.contextmanager
    def stopped_by(self, *signals: signal.Signals) -> Iterator[None]:
        """Installs a signal handler that ends the round with the outcomes so far.

        Raised as an interrupt, it would lose those of the greenlet that happens to run. For the main thread alone.
        """
        loop = gevent.get_hub().loop

        def stop(*_: object) -> None:
            self._is_interrupted = True
            loop.run_callback_threadsafe(self._greenlets.kill, GreenletExit, False)

        handlers = {number: signal.signal(number, stop) for number in signals}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def counts(self) -> Counts:
        running = self._client.open
        events = self._counts.events + sum(transcript.events for transcript in running)
        return Counts(self._counts.done, self._counts.failed, len(running), events)

    def _loop(self) -> Callable[[float], None]:
        if self._work.plan.mix is Mix.ARRIVALS:
            return self._arrivals
        return self._closed_loop if self._work.point.clients else self._open_loop

    def _closed_loop(self, begin: float) -> None:
        numbers = iter(self._numbers)  # shared: who is free takes the next
        for _ in share(self._work.point.clients, self._work.part, self._work.parts):
            self._greenlets.spawn(self._take_turns, numbers)

    def _take_turns(self, numbers: Iterator[int]) -> None:
        for i in numbers:
            self._converse(i)

    def _converse(self, i: int) -> None:
        """Asks all turns of a conversation, each when the one before is answered; most have one."""
        plan, request, answers = self._work.plan, self._requests[i], list[str]()
        for turn in range(1, mixes.n_turns(plan, i) + 1):
            pieces: list[str] = []
            outcome = self._client.ask(request, mixes.n_tokens(plan, i), pieces=pieces)
            self._keep(outcome)
            if outcome.failure is not None or turn == mixes.n_turns(plan, i):
                return
            answers.append("".join(pieces))
            request = self._request(i, False, answers)

    def _open_loop(self, begin: float) -> None:
        """Sends requests when they are due; one that begins late counts from the moment when it was due."""
        work = self._work
        times = mixes.times(work.plan, work.point, work.number)
        for i in self._numbers:
            due_time = begin + times[i]
            gevent.sleep(max(0.0, due_time - monotonic()))
            self._greenlets.spawn(self._ask_once, i, due_time, False)

    def _ask_once(self, i: int, due_time: float, is_arriving: bool) -> None:
        self._keep(self._client.ask(self._requests[i], mixes.n_tokens(self._work.plan, i), due_time, is_arriving))

    def _arrivals(self, begin: float) -> None:
        """Sends long prompts once every client has a stream running; the clients go on until the last is answered."""
        work = self._work
        stop = Event()
        running = [Event() for _ in range(work.point.clients)]
        numbers = itertools.count()
        for event in running:
            self._greenlets.spawn(self._keep_running, numbers, event, stop)
        gevent.wait(running)
        begin = monotonic()
        arriving = Group()
        for i, at in enumerate(poisson(work.point.rate, len(self._numbers), f"{work.plan.seed}/{work.number}")):
            gevent.sleep(max(0.0, begin + at - monotonic()))
            arriving.add(self._greenlets.spawn(self._ask_once, i, begin + at, True))
        arriving.join()
        stop.set()

    def _keep_running(self, numbers: Iterator[int], is_running: Event, stop: Event) -> None:
        while not stop.is_set():
            request = self._request(next(numbers), is_arriving=False)
            outcome = self._client.ask(request, self._work.plan.tokens, on_text=is_running.set)
            self._keep(outcome)
            is_running.set()  # also when it failed: nobody should wait for it
            if outcome.failure is not None:
                return

    def _request(self, index: int, is_arriving: bool, answers: Sequence[str] = ()) -> bytes:
        work = self._work
        body = mixes.body(work.plan, work.target.model, work.number, index, is_arriving, answers)
        return work.target.request("POST", "/chat/completions" if work.plan.is_chat else "/completions", body)

    def _keep(self, outcome: RequestOutcome) -> None:
        self._outcomes.append(outcome)
        self._counts.done += outcome.failure is None
        self._counts.failed += outcome.failure is not None
        self._counts.events += outcome.events
        plan = self._work.plan
        if plan.finds_goodput and not outcome.keeps(plan.limits):
            self._n_late += 1
            if self._n_late > (1 - GOODPUT_SHARE) * len(self._numbers):
                gevent.get_hub().loop.run_callback(self._greenlets.kill, GreenletExit, False)

    def _tell(self, on_progress: Callable[[Counts], None]) -> None:
        while True:
            gevent.sleep(PROGRESS_INTERVAL)
            on_progress(self.counts())
