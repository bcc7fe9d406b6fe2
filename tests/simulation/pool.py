"""The world *pool*: upstreams that die, hang, lie and come back, and an operator who adds and removes them."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gevent
from gevent import Greenlet

from corosrv.base.errors import CorosrvError, ReadTimeout
from corosrv.base.waits import waiters
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, ForwardRequest, InferEnd
from corosrv.contracts.jobs.terms import Terms
from corosrv.fleet.upstreams import connections
from corosrv.fleet.upstreams.exchange import ExchangeLimits
from corosrv.fleet.upstreams.policies import rank_name
from corosrv.fleet.upstreams.pool import UpstreamPool, UpstreamPoolSettings
from corosrv.fleet.upstreams.spec import UpstreamSpec
from corosrv.fleet.upstreams.upstream import Upstream, UpstreamState
from tests.simulation.checks import SLACK, CallRecord
from tests.simulation.net import SimEpoll, SimSocket, SocketModule
from tests.simulation.world import World

N_SERVERS = 5
HOST = "10.0.0.1"
LIMITS = ExchangeLimits(first_byte=30.0, idle=20.0)
FAULTS = (
    "refuses", "hangs", "is slow", "resets", "cuts answers", "answers 502", "answers 503", "answers 429",
    "complains", "breaks down", "vanishes", "sends garbage", "says too much", "ends no body",
)  # fmt: skip
LEAVING = 10.0  # seconds that a removed upstream may stay once it runs nothing, or its calls were ended
LARGE = 300_000  # bytes of a large piece: a few of them fill a reader


class Server:
    """A server of models on a machine of its own, with one fault at a time."""

    def __init__(self, world: PoolWorld, port: int) -> None:
        self.port = port
        self.fault = ""
        self.life = 0  # counts how often it came back
        self.running: dict[int, str] = {}
        self._world = world
        self._serving: dict[Greenlet, SimSocket] = {}
        self.address = (HOST, port)
        world.net.listen(self.address, self._accept)

    @property
    def name(self) -> str:
        return f"{self.port}.{self.life}"

    def turn(self, fault: str) -> None:
        """Begins with a fault, or is well from now on."""
        world, before = self._world, self.fault
        if fault == before:
            return
        world.note(f"server {self.port} {fault or 'is well'}")
        self.fault = fault
        if before == "vanishes":
            world.net.come_back(self.address)
        if fault == "vanishes":
            world.net.vanish(self.address)
        if "vanishes" in (before, fault) or (fault == "refuses" and world.chance(0.5)):
            self._die()
        if fault == "refuses":
            world.net.listeners.pop(self.address, None)
        else:
            world.net.listen(self.address, self._accept)

    def _die(self) -> None:
        self.life += 1
        serving, self._serving = self._serving, {}
        gevent.killall(list(serving), block=False)
        for sock in serving.values():
            sock.close()
        self.running.clear()

    def _accept(self, sock: SimSocket) -> None:
        greenlet = self._world.spawn(_Connection(self._world, self, sock).serve)
        self._serving[greenlet] = sock
        greenlet.rawlink(lambda greenlet: self._serving.pop(greenlet, None))


class _Connection:
    """One connection to a server: a greenlet reads, and another one answers, which ends when the client leaves."""

    def __init__(self, world: PoolWorld, server: Server, sock: SimSocket) -> None:
        self._world, self._server, self._sock = world, server, sock
        self._buffer = bytearray()
        self._requests: deque[tuple[str, bytes]] = deque()
        self._answering: Greenlet | None = None

    def serve(self) -> None:
        try:
            while data := self._sock.read():
                self._buffer += data
                while (request := self._next()) is not None:
                    self._requests.append(request)
                    if self._answering is None:
                        self._answering = self._world.spawn(self._answer_all)
        except OSError:
            pass
        finally:
            if self._answering is not None:
                self._answering.kill(block=False)
            self._sock.close()

    def _next(self) -> tuple[str, bytes] | None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return None
        lines = head.decode().split("\r\n")
        n_bytes = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0)
        if len(rest) < n_bytes:
            return None
        self._buffer = rest[n_bytes:]
        return lines[0].split(" ")[1], bytes(rest[:n_bytes])

    def _answer_all(self) -> None:
        try:
            while self._requests:
                self._answer(*self._requests.popleft())
            self._answering = None
        except OSError:
            self._sock.reset()

    def _answer(self, path: str, body: bytes) -> None:
        world, server, random = self._world, self._server, self._world.random
        world.sleep(0.5 if server.fault == "is slow" else 0.005)
        if server.fault == "hangs":
            gevent.sleep(100_000)
        elif server.fault == "sends garbage":
            self._sock.write(random.choice((b"\x00\xff" * 40, b"HTTP/1.1 \r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le")))
            self._sock.close()
        elif path.startswith("/health"):
            is_well = server.fault not in ("answers 502", "answers 503", "breaks down")
            status = "200 OK" if is_well else "503 Unwell"
            self._respond(status, b"")
        elif path.startswith("/v1/models"):
            self._respond("200 OK", json.dumps({"data": [{"id": name} for name in world.models[server.port]]}).encode())
        elif not path.startswith("/v1/chat"):
            self._respond("404 Not Found", b"")
        elif server.fault.startswith("answers 429"):
            self._respond("429 Busy", b"", "Retry-After: 2\r\n" if world.chance(0.5) else "")
        elif server.fault.startswith("answers 50"):
            self._respond(server.fault.removeprefix("answers ") + " Unwell", b"")
        elif server.fault in ("complains", "breaks down"):
            self._respond("500 Oops", b'{"error": {"message": "no"}}', "Content-Type: application/json\r\n")
        else:
            self._generate(json.loads(body)["n"])

    def _respond(self, status: str, body: bytes, headers: str = "") -> None:
        self._sock.write(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _generate(self, number: int) -> None:
        world, server, name = self._world, self._server, self._server.name
        world.note(f"server {name} starts call {number}")
        world.ledger.start(number, name)
        server.running[number] = name
        try:
            self._stream(number, name)
        finally:
            server.running.pop(number, None)

    def _stream(self, number: int, name: str) -> None:
        world, server, random = self._world, self._server, self._world.random
        if server.fault in ("resets", "cuts answers") and world.chance(0.3):
            raise ConnectionResetError
        self._sock.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )  # fmt: skip
        padding = "x" * LARGE if world.chance(0.01) and server.fault != "says too much" else ""
        surplus = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmore"
        for position in range(random.randint(1, 8)):
            world.sleep(0.5 if server.fault == "is slow" else 0.05)
            if server.fault == "hangs":
                gevent.sleep(100_000)
            if server.fault == "resets" and world.chance(0.2):
                raise ConnectionResetError
            if server.fault == "cuts answers" and world.chance(0.2):
                self._sock.close()
                return
            self._chunk(b"data: %s\n\n" % json.dumps([number, name, position, padding]).encode())
        self._chunk(b"data: [DONE]\n\n")
        if server.fault == "ends no body":
            gevent.sleep(100_000)
        # In one piece: what comes later than the end may be taken for the next answer, whoever the client is.
        self._sock.sendall(b"0\r\n\r\n" + (surplus if server.fault == "says too much" else b""))

    def _chunk(self, data: bytes) -> None:
        self._sock.write(b"%x\r\n%s\r\n" % (len(data), data))


class Client:
    """Asks one thing, reads the answer in its own way, and may leave early."""

    def __init__(self, world: PoolWorld, number: int) -> None:
        random, now = world.random, world.loop.time
        self._world, self._ledger = world, world.ledger
        seconds = float("inf") if world.is_calm else random.choice((float("inf"), float("inf"), 0.2, 2.0, 30.0))
        self._lag = random.choice((0.0, 0.0, 0.0, 0.1, 2.0))  # seconds, at most, between two looks
        self._record = CallRecord(
            number=number, deadline=now + seconds, slack=SLACK + self._lag, priority=random.randint(1, 9)
        )
        self._began_settled = world.is_settled
        self._leaves_at = now + random.expovariate(1) if not world.is_calm and world.chance(0.1) else float("inf")
        self._keeper = ""  # the id of the upstream that alone may answer
        self._text = bytearray()
        self._status = 0

    def run(self) -> None:
        world, record, random = self._world, self._record, self._world.random
        number = record.number
        self._ledger.begin(record)
        terms = Terms(
            priority=record.priority,
            session=random.choice(("", "", "a", "b")),
            deadline=None if record.deadline == float("inf") else record.deadline,
            request_id=str(number),
        )
        request = ForwardRequest(path="/v1/chat/completions", body=b'{"n": %d}' % number)
        model = random.choice(("m", "m", "n", None))
        keeping = [upstream.id for upstream in world.pool.upstreams if model in upstream.models]
        self._keeper = random.choice(keeping) if keeping and world.chance(0.2) else ""
        world.note(f"call {number} begins" + (f", for {self._keeper}" if self._keeper else ""))
        try:
            self._reader = world.pool.submit(model, request, terms, self._keeper)
        except CorosrvError as error:
            world.note(f"call {number} is refused: {error}")
            self._ledger.refuse(number, error)
            self._judge(error)
            return
        self._read()

    def _read(self) -> None:
        world, reader, number = self._world, self._reader, self._record.number
        while not self._record.n_ends:
            left = self._leaves_at - world.loop.time
            if left <= 0:
                world.note(f"call {number}: the client leaves")
                reader.close()
                self._ledger.leave(number)
                return
            try:
                items = reader.take(None if left == float("inf") else max(left, 0.001))
            except ReadTimeout:
                continue
            for item in items:
                self._take(item)
            if self._lag:
                gevent.sleep(world.random.uniform(0, self._lag))
        if extra := reader.take(0.001):
            world.violate(f"call {number} gets {extra} after its end")

    def _take(self, item: Any) -> None:
        match item:
            case AnswerHead():
                self._status = item.status
                if self._keeper and rank_name(item.upstream) != rank_name(self._keeper):
                    self._world.violate(f"call {self._record.number} for {self._keeper} is answered by {item.upstream}")
            case AnswerBody():
                self._text += item.data
                self._feed()
            case InferEnd():
                self._end(item.error)

    def _feed(self) -> None:
        while b"\n\n" in self._text and self._status == 200:
            event, _, self._text = self._text.partition(b"\n\n")
            if event == b"data: [DONE]":
                self._is_whole = True
            else:
                number, place, position, _ = json.loads(event.removeprefix(b"data: "))
                if number != self._record.number:
                    self._world.violate(f"call {self._record.number} gets the text of call {number}")
                self._ledger.add(number, place, position)

    _is_whole = False

    def _end(self, error: CorosrvError | None) -> None:
        world, number = self._world, self._record.number
        world.note(f"call {number} ends: {'well' if error is None else error} ({self._status})")
        self._ledger.end(number, error)
        if error is None and self._status == 200 and not self._is_whole:
            world.violate(f"call {number} ends well, and its text is not whole")
        self._judge(error)

    def _judge(self, error: CorosrvError | None) -> None:
        if self._began_settled and not self._world.is_closing and (error is not None or self._status != 200):
            self._world.violate(f"call {self._record.number} fails though all is well: {error} ({self._status})")


@dataclass(slots=True)
class _Leaving:
    """Says of an upstream that drains when its calls are ended, and when it ran one last."""

    limit: float
    busy_at: float


class PoolWorld(World):
    """An UpstreamPool with all that is below it, over sockets of the simulation."""

    name = "pool"
    pool: UpstreamPool

    def start(self) -> None:
        module = SocketModule(self.net)
        setattr(connections, "_socket", module)  # noqa: B010 - a stand-in for a module
        setattr(connections, "_connected", self.net.connect)  # noqa: B010
        setattr(waiters, "_epoll", lambda: SimEpoll(self.loop))  # noqa: B010
        setattr(connections, "socket", SimpleNamespace())  # noqa: B010
        connections._OPTIONS = ()
        self.models = {port: ("m", "n") if port % 2 else ("m",) for port in range(1, N_SERVERS + 1)}
        self.servers = {port: Server(self, port) for port in self.models}
        self.pool = UpstreamPool(
            UpstreamPoolSettings(limits=LIMITS, max_queue=60, patience=20.0, drain=10.0, is_elastic=True)
        )
        self._n_looks = 0
        self._next_number = 0
        self._leaving: dict[Upstream, _Leaving] = {}
        self.pool.start()
        self.pool.add(UpstreamSpec(url=f"http://{HOST}:1", concurrency=4))
        for server in self.servers.values():
            self.spawn(self._fail_at_times, server)
        self.spawn(self._operate)
        self.spawn(self._send_calls)
        self.spawn(self._watch)

    def mend(self) -> None:
        self.pool.add(UpstreamSpec(url=f"http://{HOST}:1", concurrency=4))
        for server in self.servers.values():
            server.turn("")

    def _fail_at_times(self, server: Server) -> None:
        while not self.is_calm:
            self.sleep(30)
            if not self.is_calm:
                server.turn("" if self.chance(0.4) else self.random.choice(FAULTS))

    def _operate(self) -> None:
        while not self.is_calm:
            self.sleep(20)
            if self.is_calm:
                return
            url = f"http://{HOST}:{self.random.randint(1, N_SERVERS)}"
            if self.chance(0.6):
                concurrency = self.random.choice((None, 1, 2, 3, 6))
                upstream, is_new = self.pool.add(UpstreamSpec(url=url, concurrency=concurrency))
                self.note(f"upstream {upstream.id} is {'added' if is_new else 'there'}")
            elif self.chance(0.2):
                self.loop.stall(self.random.choice((0.1, 0.5)))
                self.note("the hub was held")
            else:
                self._remove(url)

    def _remove(self, url: str) -> None:
        aborts, timeout = self.chance(0.3), self.random.choice((0.0, 5.0, 60.0))
        try:
            upstream = self.pool.find(url)
        except CorosrvError:
            return
        self.note(f"upstream {upstream.id} is removed")
        self.pool.remove(upstream, abort=aborts, timeout=timeout)
        leaving = _Leaving(self.loop.time + (0.0 if aborts else timeout), self.loop.time)
        before = self._leaving.setdefault(upstream, leaving)
        before.limit = min(before.limit, leaving.limit)

    def _send_calls(self) -> None:
        while True:
            gap = 40.0 if self.is_calm else self.random.choice((3.0, 0.5, 0.03))
            for _ in range(1 if self.is_calm else self.random.randint(1, 20)):
                self.sleep(gap)
                self._next_number += 1
                self.spawn(Client(self, self._next_number).run)

    # What must hold.

    def _watch(self) -> None:
        while True:
            gevent.sleep(5 if self.is_calm else 1)
            self.ledger.look()
            for server in self.servers.values():
                for number, name in server.running.items():
                    self.ledger.check_runs(number, f"server {name}")
            self._check_leaving()

    def _check_leaving(self) -> None:
        now = self.loop.time
        for upstream, leaving in list(self._leaving.items()):
            if upstream.in_flight:
                leaving.busy_at = now
            if upstream not in self.pool.upstreams:
                del self._leaving[upstream]
            elif now > min(leaving.limit, leaving.busy_at) + LEAVING:
                self.violate(f"{upstream.id} was removed and is still there, with {upstream.in_flight} calls")

    def check(self) -> None:
        self._n_looks += 1
        if self._n_looks % 4:
            return
        for upstream in self.pool.upstreams:
            permits = upstream.permits
            if upstream.in_flight != permits.in_use + permits.retiring:
                held = permits.in_use + permits.retiring
                self.violate(f"{upstream.id} runs {upstream.in_flight} calls, and {held} permits are held")
            if permits.in_use > upstream.concurrency:
                self.violate(f"{upstream.id} runs {permits.in_use} calls, more than {upstream.concurrency}")
        if self._n_looks % 8 == 0 and self.loop.is_on_time:
            self._check_waiting()

    def _check_waiting(self) -> None:
        now = self.loop.time
        for queue in self.pool.dispatcher._waiting:
            free = [group.host.id for group in queue.entry.groups if group.has_free] if queue.depth else []
            if any(queue.head(now, host_id) is not None for host_id in free):
                self.violate(f"a call of {queue.entry.key} waits beside a free permit")

    def check_calm(self) -> None:
        stats = self.pool.dispatcher.stats()
        for upstream in self.pool.upstreams:
            if upstream.state is not UpstreamState.READY:
                self.violate(f"{upstream.id} is well, and {upstream.state.value}: {upstream.reason}")
        n_open = len(self.ledger.open)
        if stats.n_calls > n_open or stats.n_waiting > n_open:
            self.violate(f"{stats.n_calls} calls are counted, and {stats.n_waiting} as waiting, of {n_open}")

    def close(self) -> None:
        self.pool.stop()
        self.spawn(self._close_late)

    def _close_late(self) -> None:
        gevent.sleep(60)
        self.pool.close()
