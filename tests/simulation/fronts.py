"""The world *fronts*: three servers share the permits of two upstreams through Redis, and lose it and their lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gevent

from corosrv.base.errors import CallCancelled, CorosrvError, ReadTimeout
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferJob, InferOutputs, InferRequest, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.fleet.cluster.namespace import KeyNames
from corosrv.fleet.cluster.permits import PermitShares
from corosrv.formats.tensors import Tensor
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import CallListener, HandedCall, LaneGroup, Permit, PermitPool
from tests.simulation.checks import CallRecord
from tests.simulation.redis import Link, SimRedis, SimRedisClient, missing
from tests.simulation.world import World

N_FRONTS = 3
UPSTREAMS = ("up-0", "up-1")
PERMITS = 3  # of each upstream
CARDS = [HandlerCard("whole"), HandlerCard("stream", is_stream=True)]
LONGEST = 10.0  # seconds that a call takes where all is well and little is asked
QUIET = 60.0  # seconds before the end in which nothing is asked any more
FAR = float("inf")


class SimCall:
    """A call that an upstream runs: sleeps, sends pieces, ends."""

    def __init__(self, worker: SimUpstream, permit: Permit, call: HandedCall, listener: CallListener) -> None:
        self._worker, self._permit, self._item, self._listener = worker, permit, call.items[0], listener
        self._error: CorosrvError | None = None
        worker.begin(int(self._item.request_id))
        self._greenlet = gevent.spawn(self._run)
        self._greenlet.rawlink(lambda greenlet: self._end())

    def cancel(self, item: int = -1, *, is_deadline: bool = False) -> None:
        self._error = CallCancelled("cancelled")
        self._greenlet.kill(block=False)

    def _run(self) -> None:
        parameters = self._item.request.parameters
        gevent.sleep(float(parameters["seconds"]))
        for number in range(int(parameters["pieces"])):
            self._send(b"%d" % number)
            self._listener.wait_for_room()
            gevent.sleep(0.05)
        if not parameters["pieces"]:
            self._send(self._item.request.inputs[0].data[0])

    def _send(self, text: bytes) -> None:
        outputs = InferOutputs((Tensor("out", "BYTES", [2], [text, self._worker.id.encode()]),))
        self._listener.on_outputs(0, outputs, len(text))

    def _end(self) -> None:
        self._worker.end()
        self._permit.release()
        self._listener.on_end(0, self._error)
        self._worker.changed()


class SimUpstream:
    """An upstream as one front knows it."""

    incarnation = 1
    is_draining = False
    concurrency = PERMITS

    def __init__(self, world: FrontsWorld, name: str) -> None:
        self.id = name
        self.handlers = CARDS
        self.permits = PermitPool(range(PERMITS))
        self.groups = [LaneGroup(tuple(range(len(CARDS))), self.permits)]
        self.n_running = 0
        self._world = world
        self._listener: Callable[[], None] = lambda: None

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> SimCall:
        return SimCall(self, permit, call, listener)

    def begin(self, number: int) -> None:
        self.n_running += 1
        self._world.begin(self.id, number)

    def end(self) -> None:
        self.n_running -= 1
        self._world.running[self.id] -= 1

    def callers(self) -> Counter[str]:
        return Counter({"": self.n_running})

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listener = listener

    def changed(self) -> None:
        self._listener()


class FrontServer:
    """One life of a server: its dispatcher, its upstreams and what it holds of their permits."""

    def __init__(self, world: FrontsWorld, number: int, life: int) -> None:
        self.name = f"front-{number}.{life}"
        self.link = Link(world, world.redis)
        self.client = SimRedisClient(self.link)
        self.dispatcher = Dispatcher()
        self.shares = PermitShares(self.client, KeyNames("sim"), self.name, self.dispatcher)
        self.upstreams = [SimUpstream(world, name) for name in UPSTREAMS]
        self.callers: dict[Caller, None] = {}
        self.is_dead = False
        self._world = world
        for upstream in self.upstreams:
            self.dispatcher.add_host(upstream)
            self.shares.lend(upstream.id, upstream)
        world.note(f"{self.name} starts")
        self.client.start()
        self.shares.start()

    def die(self) -> None:
        """Ends as kill -9 does: nothing that it would say reaches anybody."""
        self._world.note(f"{self.name} is killed")
        self.is_dead = True
        self.link.cut(True)
        for caller in list(self.callers):
            caller.lose()
        self.close()

    def close(self) -> None:
        """Ends it. Waits for Redis, two seconds at most."""
        self.dispatcher.close()
        self.shares.close()
        self.client.close()


class Caller:
    """Asks one front, reads the answer, and may leave."""

    def __init__(self, world: FrontsWorld, front: FrontServer, number: int) -> None:
        random, now = world.random, world.loop.time
        self._world, self._front, self._ledger = world, front, world.ledger
        self._card = random.choice(CARDS)
        seconds = FAR if world.is_calm else random.choice((FAR, FAR, 0.5, 5.0, 60.0))
        self._record = CallRecord(
            number=number, deadline=now + seconds, max_starts=1,
            priority=random.randint(1, 9),
        )  # fmt: skip
        self._began_settled = world.is_settled
        self._leaves_at = now + random.expovariate(1) if not world.is_calm and world.chance(0.1) else FAR
        self._is_lost = False
        self._n_pieces = 0

    def run(self) -> None:
        world, number, random = self._world, self._record.number, self._world.random
        self._ledger.begin(self._record)
        world.note(f"call {number} of {self._card.name} begins at {self._front.name}")
        parameters = {
            "seconds": random.expovariate(1 / random.choice((0.05, 0.5))),
            "pieces": random.randint(1, 6) if self._card.is_stream else 0,
        }  # fmt: skip
        text = Tensor("text", "BYTES", [1], [b"%d" % number])
        terms = Terms(
            request_id=str(number), priority=self._record.priority,
            deadline=None if self._record.deadline == FAR else self._record.deadline,
        )  # fmt: skip
        job = InferJob(
            ModelTarget(self._card.name), InferRequest((text,), str(number), parameters), self._card.is_stream, terms
        )
        try:
            reader = self._front.dispatcher.submit(job)
        except CorosrvError as error:
            world.note(f"call {number} is refused: {error}")
            self._ledger.refuse(number, error)
            self._judge(error)
            return
        self._front.callers[self] = None
        try:
            self._read(reader)
        finally:
            self._front.callers.pop(self, None)

    def lose(self) -> None:
        """Hears that its server was killed."""
        self._is_lost = True
        self._ledger.leave(self._record.number)

    def _read(self, reader: Any) -> None:
        number = self._record.number
        while not self._record.n_ends and not self._is_lost:
            left = self._leaves_at - self._world.loop.time
            if left <= 0:
                self._world.note(f"call {number}: the client leaves")
                reader.close()
                self._ledger.leave(number)
                return
            try:
                items = reader.take(None if left == FAR else max(left, 0.001))
            except ReadTimeout:
                continue
            for item in items:
                if not self._is_lost:
                    self._take(item)

    def _take(self, item: Any) -> None:
        number = self._record.number
        if not isinstance(item, InferEnd):
            text, place = item.outputs[0].data
            if not self._card.is_stream and int(text) != number:
                self._world.violate(f"call {number} gets the answer of call {text!r}")
            position = int(text) if self._card.is_stream else 0
            self._ledger.add(number, place.decode(), position)
            return
        self._world.note(f"call {number} ends: {'well' if item.error is None else item.error}")
        self._ledger.end(number, item.error)
        if item.error is None and not self._record.pieces:
            self._world.violate(f"call {number} ends well without an answer")
        self._judge(item.error)

    def _judge(self, error: CorosrvError | None) -> None:
        if not self._began_settled or self._world.is_closing:
            return
        if error is not None:
            self._world.violate(f"call {self._record.number} fails though all is well: {error}")
        if self._world.loop.time > self._record.began_at + LONGEST:
            self._world.violate(f"call {self._record.number} has waited long though all is well")


class FrontsWorld(World):
    """Three fronts with dispatchers, upstreams and links to a real Redis under the simulation's clock."""

    name = "fronts"
    calm = 300.0  # fronts look every second, and forget each other within a minute

    def start(self) -> None:
        if programs := missing():
            raise SystemExit(f"the world of fronts needs {programs}")
        self.redis = SimRedis(self)
        self.running: Counter[str] = Counter()  # calls at each upstream, of all fronts
        self.fronts = [FrontServer(self, number, 0) for number in range(N_FRONTS)]
        self._n_lives = 0
        self._next_number = 0
        self.spawn(self._operate)
        self.spawn(self._send_calls)
        self.spawn(self._watch)

    def release(self) -> None:
        self.redis.close()

    def mend(self) -> None:
        self.redis.slowness, self.redis.loss = 0.001, 0.0
        self.redis.is_down = False
        for front in self.fronts:
            front.link.cut(False)

    def _operate(self) -> None:
        while not self.is_calm:
            self.sleep(12)
            chance = self.random.random()
            front = self.random.choice(self.fronts)
            if self.is_calm:
                return
            if chance < 0.35:
                self.spawn(self._cut, front)
            elif chance < 0.6:
                self._replace(front)
            elif chance < 0.75:
                self._restart_redis(self.random.choice((2.0, 22.0)), loses_all=self.chance(0.4))
            elif chance < 0.8:
                self.note("Redis is flushed")
                self.redis.run([("FLUSHALL",)])
            elif chance < 0.85:
                self._stop_redis()
            elif chance < 0.95:
                self.redis.slowness = self.random.choice((0.001, 0.02, 0.1))
                self.redis.loss = self.random.choice((0.0, 0.1, 0.3))
                self.note(f"Redis takes {2 * self.redis.slowness:g} s to answer, and hears {self.redis.loss:.0%} late")
            else:
                self.note("the hub was held")
                self.loop.stall(self.random.choice((0.1, 0.5)))

    def _cut(self, front: FrontServer) -> None:
        self.note(f"{front.name} is cut off from Redis")
        front.link.cut(True)
        gevent.sleep(self.random.uniform(0.1, 3.0))
        if not front.is_dead:
            self.note(f"{front.name} reaches Redis again")
            front.link.cut(False)

    def _replace(self, front: FrontServer) -> None:
        number = self.fronts.index(front)
        front.die()
        self._n_lives += 1
        self.fronts[number] = FrontServer(self, number, self._n_lives)

    def _stop_redis(self) -> None:
        self.note("Redis stands still")
        self.redis.is_down = True
        gevent.sleep(22)
        self.note("Redis goes on")
        self.redis.is_down = False

    def _restart_redis(self, seconds: float, loses_all: bool) -> None:
        self.note(f"Redis is killed{', and its file is lost' if loses_all else ''}")
        self.redis.kill(loses_all)
        self.redis.is_down = True
        self.redis.start()
        gevent.sleep(seconds)
        self.note("Redis is back")
        self.redis.is_down = False

    def _send_calls(self) -> None:
        while not self.is_calm or self.loop.time < self.calm_since + self.calm - QUIET:
            gap = 10.0 if self.is_calm else self.random.choice((3.0, 0.5, 0.03))
            for _ in range(1 if self.is_calm else self.random.randint(1, 20)):
                self.sleep(gap)
                self._next_number += 1
                self.spawn(Caller(self, self.random.choice(self.fronts), self._next_number).run)

    # What must hold.

    def _watch(self) -> None:
        while True:
            gevent.sleep(5 if self.is_calm else 1)
            self.ledger.look()

    def begin(self, upstream: str, number: int) -> None:
        """Hears that an upstream begins a call."""
        self.running[upstream] += 1
        self.note(f"call {number} begins at {upstream}, which runs {self.running[upstream]}")
        if self.running[upstream] > PERMITS:
            self.violate(f"{upstream} runs {self.running[upstream]} calls and has {PERMITS} permits")
        self.ledger.start(number, upstream)

    def check(self) -> None:
        """Looks at nothing: what must hold is looked at where calls begin and end."""

    def check_calm(self) -> None:
        for front in self.fronts:
            if n_calls := front.dispatcher.stats().n_calls:
                self.violate(f"{front.name} counts {n_calls} calls, and nobody asks")
            for share in front.shares.shares:
                if share.used or share.held != PERMITS // N_FRONTS:
                    self.violate(f"{front.name} holds {share.held} and uses {share.used} of {share.resource} at rest")

    def close(self) -> None:
        for front in self.fronts:
            self.spawn(front.close)
