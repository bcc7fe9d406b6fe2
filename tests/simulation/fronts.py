"""The world *fronts*: three servers that share calls through Redis, and lose it, each other and their lives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import gevent

from corosrv.base.errors import CorosrvError, ReadTimeout
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferJob, InferRequest, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.fleet.cluster.queue_link import QueueLink
from corosrv.fleet.cluster.key_names import KeyNames, QueueNames
from corosrv.formats.tensors import Tensor
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import HandedCall
from tests.simulation.checks import CallRecord
from tests.simulation.redis import Link, SimRedis, SimRedisClient, missing
from tests.simulation.world import World
from tests.support.queue_front import SleepingHost

N_FRONTS = 3
CARDS = [
    HandlerCard("once"),
    HandlerCard("again", is_idempotent=True),
    HandlerCard("stream", is_idempotent=True, is_stream=True),
]
MAX_STARTS = 6  # of a call that may be repeated: three deliveries, a fall-back, and what a lost Redis has forgotten
LONGEST = 10.0  # seconds that a call takes where all is well and little is asked
QUIET = 60.0  # seconds before the end in which nothing is asked any more
FAR = float("inf")


class SimHost(SleepingHost):
    """Runs calls in the front itself, and says so to the ledger."""

    def __init__(self, world: FrontsWorld, name: str, cards: Sequence[HandlerCard], n_slots: int) -> None:
        super().__init__(name, cards, n_slots, os.devnull)
        self._world = world

    def note(self, event: str, call: HandedCall) -> None:
        number = int(call.items[0].request_id)
        self._world.note(f"call {number} is {event} by {self.name}")
        if event == "started":
            # Redis may be away, and with it what would have told that nobody wants the call any more.
            self._world.ledger.start(number, self.name, FAR)

    def close(self) -> None:
        os.close(self._starts)


class FrontServer:
    """One life of a server: its dispatcher, its workers and its part in the shared queue."""

    def __init__(self, world: FrontsWorld, number: int, life: int) -> None:
        self.name = f"front-{number}.{life}"
        self.link = Link(world, world.redis)
        self.client = SimRedisClient(self.link)
        self.queue_link = QueueLink(self.client, QueueNames(KeyNames("sim"), self.name))
        self.dispatcher = Dispatcher()
        self.host = SimHost(world, self.name, CARDS, 2)
        self.callers: dict[Caller, None] = {}
        self.is_dead = False
        self._world = world
        if number:  # the first serves nothing itself
            self.dispatcher.add_host(self.host)
        self.dispatcher.expect("other", CARDS, is_elsewhere=True)
        queue = self.queue_link.add(
            "app", self.dispatcher, max_calls=1000, max_bytes=1 << 30, falls_back=number == 1
        )  # fmt: skip
        self.dispatcher.share(queue)
        world.note(f"{self.name} starts")
        self.client.start()
        self.queue_link.start()

    def die(self) -> None:
        """Ends as kill -9 does: nothing that it would say reaches anybody."""
        self._world.note(f"{self.name} is killed")
        self.is_dead = True
        self.link.cut(True)
        for caller in list(self.callers):
            caller.lose()
        self.close()

    def close(self) -> None:
        """Ends it. Waits for Redis, a second at most."""
        self.dispatcher.close()
        self.queue_link.close()
        self.client.close()
        self.host.close()


class Caller:
    """Asks one front, reads the answer, and may leave."""

    def __init__(self, world: FrontsWorld, front: FrontServer, number: int) -> None:
        random, now = world.random, world.loop.time
        self._world, self._front, self._ledger = world, front, world.ledger
        self._card = random.choice(CARDS)
        seconds = FAR if world.is_calm else random.choice((FAR, FAR, 0.5, 5.0, 60.0))
        self._record = CallRecord(
            number=number, deadline=now + seconds, max_starts=MAX_STARTS if self._card.is_idempotent else 1,
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
            "pieces": random.randint(1, 6) if self._card.is_stream else 0, "bytes": 1, "pause": 0.05,
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
            position = int(text.rstrip(b".")) if self._card.is_stream else 0
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
    """Three fronts with dispatchers, hosts and links to a real Redis under the simulation's clock."""

    name = "fronts"
    calm = 300.0  # fronts look every second, and forget each other within a minute

    def start(self) -> None:
        if programs := missing():
            raise SystemExit(f"the world of fronts needs {programs}")
        self.redis = SimRedis(self)
        self.fronts = [FrontServer(self, number, 0) for number in range(N_FRONTS)]
        self._n_lives = 0
        self._next_number = 0
        self.spawn(self._operate)
        self.spawn(self._send_calls)
        self.spawn(self._watch)

    def release(self) -> None:
        self.redis.close()

    def mend(self) -> None:
        self.redis.slowness = 0.001
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
                self._restart_redis(loses_all=self.chance(0.4))
            elif chance < 0.9:
                self.redis.slowness = self.random.choice((0.001, 0.05, 1.0))
                self.note(f"Redis takes {2 * self.redis.slowness:g} s to answer")
            else:
                self.note("the hub was held")
                self.loop.stall(self.random.choice((0.1, 0.5)))

    def _cut(self, front: FrontServer) -> None:
        self.note(f"{front.name} is cut off from Redis")
        front.link.cut(True)
        self.sleep(self.random.choice((1.0, 20.0)))
        if not front.is_dead:
            self.note(f"{front.name} reaches Redis again")
            front.link.cut(False)

    def _replace(self, front: FrontServer) -> None:
        number = self.fronts.index(front)
        front.die()
        self._n_lives += 1
        self.fronts[number] = FrontServer(self, number, self._n_lives)

    def _restart_redis(self, loses_all: bool) -> None:
        self.note(f"Redis is killed{', and its file is lost' if loses_all else ''}")
        self.redis.kill(loses_all)
        self.redis.is_down = True
        self.redis.start()
        self.sleep(2.0)
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

    def check(self) -> None:
        """Looks at nothing: what a front knows of the others is always a little old."""

    def check_calm(self) -> None:
        for front in self.fronts:
            stats, link = front.dispatcher.stats(), front.queue_link
            if stats.n_calls or len(link.accepted) or len(link.deliveries):
                self.violate(
                    f"{front.name} counts {stats.n_calls} calls, has accepted {len(link.accepted)} and runs "
                    f"{len(link.deliveries)}, and nobody asks"
                )
            if n_held := front.host.groups[0].permits.in_use:
                self.violate(f"{front.name} has {n_held} permits in use")
        names = QueueNames(KeyNames("sim"), "")
        (keys,) = self.redis.run([("KEYS", "*")])
        for key in sorted(key.decode() for key in keys):
            if key.startswith((names.marks, names.bodies)):
                self.violate(f"{key} is left in Redis")
            if ":queue:" in key and (n_entries := self.redis.run([("XLEN", key)])[0]):
                self.violate(f"{n_entries} entries are left in {key}")

    def close(self) -> None:
        for front in self.fronts:
            self.spawn(front.close)
