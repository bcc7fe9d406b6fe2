"""Worker processes of the simulation: they speak the real protocol over sockets, and end as their fate says."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

import gevent
import msgspec
from gevent import Greenlet, GreenletExit
from gevent.event import Event

from corosrv.base.errors import ChannelClosed, WireError
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire import calls
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.wire.messages import Fatal, Lanes, SlotFailed
from corosrv.workers.wire.tensors import TensorPacking, unpack
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from corosrv.workers.worker.parent.process import Exit
from tests.simulation.net import SimSocket
from tests.simulation.world import World

HEARTBEAT = 1.6  # seconds
FATES = (
    "is well", "is well", "is well", "is well", "is well", "is well", "cannot import", "imports for ever", "crashes",
    "crashes", "crashes", "freezes", "talks nonsense", "never stops", "gives up", "loses a slot", "closes a lane",
)  # fmt: skip

Lane = GeventChannel[calls.LaneFromAppWorker, calls.LaneToAppWorker]


def text(name: str, content: bytes) -> Tensor:
    return Tensor(name, "BYTES", [1], [content])


class SimProcess:
    """Stands for a process: fulfils AnyProcess. Its sockets close with it, and its end is known a little later."""

    def __init__(self, world: World, pid: int) -> None:
        self.pid = pid
        self.exit: Exit | None = None
        self.child: Child
        self.was_killed = False  # by the server
        self._world = world
        self._is_dying = False
        self._has_ended = Event()

    @property
    def holds_memory(self) -> bool:
        """Tells whether it runs, and is to run on or to end by itself."""
        return not self._is_dying and not self.was_killed and "import" not in self.child.fate

    def wait(self, timeout: float | None = None) -> bool:
        return bool(self._has_ended.wait(timeout))

    def terminate(self) -> None:
        self._world.loop.after(self._delay(), self.die, -15)

    def kill(self) -> None:
        self.was_killed = True
        self._world.loop.after(self._delay(), self.die, -9)

    def die(self, code: int) -> None:
        """Ends the process. Twice is harmless."""
        if not self._is_dying:
            self._is_dying = True
            self.child.vanish()
            if seconds := self._delay():
                self._world.loop.after(seconds, self._reap, code)
            else:
                self._world.loop.run_callback(self._reap, code)

    def _reap(self, code: int) -> None:
        self._world.note(f"process {self.pid} has ended with {code}")
        self.exit = Exit(code)
        self._has_ended.set()

    def _delay(self) -> float:
        """Draws the seconds until something of it is known: often none, so that much happens at once."""
        return 0.0 if self._world.chance(0.5) else self._world.random.expovariate(500)


class Child:
    """Does what a worker process of an application does, on its end of the control channel."""

    def __init__(self, world: World, process: SimProcess, sock: SimSocket, pools: Sequence[calls.PoolCard]) -> None:
        self.process = process
        self.fate = world.draw_fate(FATES)
        self.running: dict[int, bool] = {}  # the calls, and whether their handler heeds a cancel
        self._is_faulty = False  # the server may take no answers of it any more
        self._world = world
        self._pools = pools
        self._handlers: Sequence[HandlerCard] = ()
        self._place = f"{process.pid}"
        self._cancelled: dict[tuple[int, int], str] = {}  # the kinds of failures, by call and item
        self._events: dict[int, Event] = {}  # set at a cancel, by call
        self._lanes: list[Lane] = []
        self._greenlets: dict[Greenlet, None] = {}
        self._control: GeventChannel[calls.ControlFromAppWorker, calls.ControlToAppWorker] = GeventChannel(
            sock, StructCodec(calls.ControlToAppWorker, msgspec.msgpack), takes_fds=True
        )
        process.child = self
        world.note(f"process {process.pid} starts, and {self.fate}")
        self._spawn(self._serve)

    def _spawn(self, function: Callable[..., object], *arguments: object) -> None:
        greenlet = self._world.spawn(self._run, function, *arguments)
        self._greenlets[greenlet] = None
        greenlet.rawlink(lambda greenlet: self._greenlets.pop(greenlet, None))

    def _run(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(ChannelClosed, WireError, GreenletExit):  # the server has gone, and this with it
            function(*arguments)

    def vanish(self) -> None:
        """Leaves nothing behind but what was sent."""
        self.freeze()
        self._control.close()
        for lane in self._lanes:
            lane.close()

    def freeze(self) -> None:
        """Does nothing from now on."""
        self.running.clear()
        gevent.killall(list(self._greenlets), block=False)

    @property
    def was_killed(self) -> bool:
        """Tells whether the server has ended it, and so what it had sent last."""
        return self.process.was_killed

    # Its control channel.

    def _serve(self) -> None:
        while (message := self._control.receive()) is not None:
            match message:
                case calls.InitApp():
                    self._spawn(self._import)
                case calls.StartPool():
                    self._spawn(self._start_pool, message.pool)
                case Lanes():
                    for fd in self._control.take_fds():
                        self._open_lane(self._world.net.held(fd))
                case calls.CancelCall():
                    kind = "deadline" if message.is_deadline else "cancelled"
                    self._cancelled[message.id, message.item] = kind
                    if message.id in self._events:
                        self._events[message.id].set()
                case calls.StopWorker():
                    self._spawn(self._stop)
        self.process.die(0)

    def _import(self) -> None:
        self._world.sleep(0.5)
        if self.fate == "imports for ever":
            gevent.sleep(100_000)
        if self.fate == "cannot import":
            self._control.send(calls.StartFailed("no such module"))
            self._world.sleep(0.1)
            self.process.die(1)
            return
        self._control.send(calls.Loaded(list(self._pools)))

    def _start_pool(self, name: str) -> None:
        self._world.sleep(0.5)
        self._handlers = next(pool.handlers for pool in self._pools if pool.name == name)
        self._place = f"{name}.{self.process.pid}"
        self._control.send(calls.Registered(list(self._handlers)))
        self._spawn(self._beat)
        if self.fate not in ("is well", "never stops"):
            self._spawn(self._meet_fate)

    def _beat(self) -> None:
        while True:
            self._control.send(calls.Heartbeat(len(self.running), 1 << 20))
            gevent.sleep(HEARTBEAT if not self._world.is_calm else 2 * HEARTBEAT)

    def _meet_fate(self) -> None:
        world = self._world
        world.sleep(15)
        if world.is_calm:
            return
        world.note(f"process {self.process.pid} {self.fate} now")
        self._is_faulty = True
        match self.fate:
            case "crashes":
                self.process.die(-11)
            case "freezes":
                self.freeze()
            case "gives up":
                self._control.send(Fatal("no memory"))
                world.sleep(1.0)
                self.process.die(134)
            case "loses a slot":
                self._control.send(SlotFailed(world.random.randrange(len(self._lanes)), "its thread has ended"))
            case "closes a lane":
                world.random.choice(self._lanes).close()
            case "talks nonsense":
                world.random.choice([self._control, *self._lanes])._socket.send(b"\x00\x00\x00\x05nonse")

    def _stop(self) -> None:
        if self.running and not self._world.is_closing:
            self._world.violate(f"process {self.process.pid} is told to stop while it runs {list(self.running)}")
        self._world.sleep(0.3)
        if self.fate == "never stops":
            gevent.sleep(100_000)
        self._control.send(calls.WorkerStopped())
        self.process.die(0)

    # Its lanes.

    def _open_lane(self, sock: SimSocket) -> None:
        codec = StructCodec(calls.LaneToAppWorker, msgspec.msgpack)
        lane: Lane = GeventChannel(sock, codec, takes_fds=True)
        self._lanes.append(lane)
        self._spawn(self._serve_lane, lane)

    def _serve_lane(self, lane: Lane) -> None:
        while (message := lane.receive()) is not None:
            if isinstance(message, calls.RunCall):
                self._run_call(lane, message)

    def _run_call(self, lane: Lane, message: calls.RunCall) -> None:
        world, card = self._world, self._handlers[message.handler]
        numbers = []
        for request in message.requests:
            ((tensor,),) = unpack([request.inputs], ())
            numbers.append(int(tensor.data[0]))
        heeds = world.is_calm or not world.chance(0.01)
        for number in numbers:
            world.note(f"{card.name} of {self._place} starts call {number}{'' if heeds else ', and heeds no cancel'}")
            world.ledger.start(number, self._place)
            self.running[number] = heeds
        try:
            self._handle(lane, message, card, numbers, heeds)
        finally:
            self._events.pop(message.id, None)
            for number in numbers:
                self.running.pop(number, None)

    def _handle(
        self, lane: Lane, message: calls.RunCall, card: HandlerCard, numbers: list[int], heeds: bool
    ) -> None:  # fmt: skip
        world = self._world
        is_streamed = card.is_stream and message.stream
        n_pieces = world.random.randint(1, 5) if is_streamed else 1
        mean = 200.0 if not heeds else world.random.choice((0.05, 0.05, 0.05, 0.05, 2.0))  # seconds of each piece
        for position in range(n_pieces):
            self._work(message.id, mean, heeds, numbers)
            for item, number in enumerate(numbers):
                if self._kind_of(message.id, item) is None:
                    self._send_output(lane, message.id, item, f"{number} {self._place} {position}".encode(), card)
        fails = not world.is_calm and world.chance(0.03)
        for item, number in enumerate(numbers):
            if (kind := self._kind_of(message.id, item)) is not None:
                lane.send(calls.CallFailure(message.id, kind, "", item))
            elif fails:
                lane.send(calls.CallFailure(message.id, "failed", "it raised", item))
            else:
                lane.send(calls.CallEnd(message.id, item))
                if not self._is_faulty:
                    world.ledger.answer(number, self)
        if not world.is_calm and world.chance(0.01):
            world.note(f"process {self.process.pid} crashes behind its answer")
            self.process.die(-6)

    def _work(self, call_id: int, mean: float, heeds: bool, numbers: list[int]) -> None:
        """Works for a while, or until all of the call is cancelled."""
        ends_at = self._world.loop.time + self._world.random.expovariate(1 / mean)
        cancelled = self._events[call_id] = Event()
        while (left := ends_at - self._world.loop.time) > 0:
            cancelled.wait(left)
            cancelled.clear()
            if not heeds:
                continue
            alive = [number for item, number in enumerate(numbers) if self._kind_of(call_id, item) is None]
            for number in set(numbers).difference(alive):
                self.running.pop(number, None)
            if not alive:
                return

    def _kind_of(self, call_id: int, item: int) -> str | None:
        return self._cancelled.get((call_id, item)) or self._cancelled.get((call_id, -1))

    def _send_output(self, lane: Lane, call_id: int, item: int, content: bytes, card: HandlerCard) -> None:
        name = "text_output" if card.is_stream else "out"
        with TensorPacking() as packing:
            lane.send(calls.CallOutputs(call_id, packing.pack([text(name, content)]), item=item), packing.fds())


class SimAppProcess(AppProcess):
    """The product's side of a worker process, linked with a child of the simulation."""

    def __init__(
        self,
        world: World,
        pids: itertools.count[int],
        started: list[SimProcess],
        cards: Sequence[calls.PoolCard],
        config: AppWorkerConfig,
        pool: str | None,
        place: str,
        incarnation: int,
    ) -> None:
        super().__init__(config, pool, place, incarnation)
        self._world, self._pids, self._started, self._cards = world, pids, started, cards

    def _link_process(self) -> None:
        ours, theirs = self._world.net.socketpair()
        process = SimProcess(self._world, next(self._pids))
        self._started.append(process)
        Child(self._world, process, theirs, self._cards)
        self._link.adopt(process, ours)
