"""The world *workers*: pools of worker processes that crash, freeze, hang and are replaced, while calls run on them."""

from __future__ import annotations

import itertools
from typing import Any

import gevent

from corosrv.base.errors import CorosrvError, NotFound, ReadTimeout, Refused
from corosrv.contracts.jobs.infer import (
    BatchLimits,
    HandlerCard,
    InferEnd,
    InferJob,
    InferOutputs,
    InferRequest,
    ModelTarget,
)
from corosrv.contracts.jobs.terms import Terms
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.policy import DispatchSettings
from corosrv.workers.manager.manager import Manager, ManagerSettings
from corosrv.workers.manager.plan import Claim, PlaceState
from corosrv.workers.wire.calls import PoolCard
from corosrv.workers.worker.parent import linked_process
from corosrv.workers.worker.parent.app_watch import POISONED_GRACE
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from tests.simulation.checks import SLACK, CallRecord
from tests.simulation.net import SocketModule
from tests.simulation.processes import SimAppProcess, SimProcess, text
from tests.simulation.world import World

HANDLERS = [
    HandlerCard("plain", concurrency=2, max_queue=20),
    HandlerCard("repeats", concurrency=2, is_idempotent=True, max_queue=20, slo_ms=500),
    HandlerCard("streams", group=1, concurrency=2, is_stream=True, is_idempotent=True),
    HandlerCard("batch", group=2, is_idempotent=True, batch=BatchLimits(4, 200.0)),
]
RARE = [HandlerCard("rare", is_idempotent=True)]
POOLS = [
    PoolCard("default", HANDLERS, min_workers=2, max_workers=3, memory_mb=100.0),
    PoolCard("rare", RARE, min_workers=0, max_workers=2, memory_mb=100.0, cold_start_ms=2000.0, priority=6),
]
CONFIG = AppWorkerConfig(
    app_ref="app:app", start_timeout_s=10.0, hang_grace_s=3.0, lease_s=10.0, stop_grace_s=3.0, env={}
)  # fmt: skip
LONGEST_HANG = CONFIG.hang_grace_s + POISONED_GRACE + 5.0  # seconds that a handler which heeds no cancel may go on
MAX_PROCESSES = 4  # that the host has memory for
CARDS = HANDLERS * 3 + RARE


class Caller:
    """Makes one call of a handler and reads its answer, and may repeat it under the same idempotency key."""

    def __init__(self, world: WorkersWorld, number: int) -> None:
        random, now = world.random, world.loop.time
        self._world, self._ledger = world, world.ledger
        self._card = random.choice(CARDS)
        seconds = float("inf") if world.is_calm else random.choice((float("inf"), float("inf"), 0.1, 2.0, 30.0))
        self._record = CallRecord(
            number=number, deadline=now + seconds, max_starts=2 if self._card.is_idempotent else 1,
            priority=random.randint(1, 9),
        )  # fmt: skip
        self._is_stream = self._card.is_stream
        self._key = f"key {number}" if world.chance(0.2) else ""
        self._began_settled = world.is_settled
        self._leaves_at = now + random.expovariate(2) if not world.is_calm and world.chance(0.1) else float("inf")
        self._outputs: list[InferOutputs] = []

    def run(self) -> None:
        world, number = self._world, self._record.number
        self._ledger.begin(self._record)
        world.note(f"call {number} of {self._card.name} begins")
        try:
            reader = self._submit()
        except CorosrvError as error:
            world.note(f"call {number} is refused: {error}")
            self._ledger.refuse(number, error)
            self._judge(error)
            return
        self._read(reader)

    def _submit(self) -> Any:
        record, random = self._record, self._world.random
        terms = Terms(
            caller="ab"[record.number % 2],
            priority=record.priority,
            session=random.choice(("", "", "s")),
            deadline=None if record.deadline == float("inf") else record.deadline,
            request_id=str(record.number),
            idempotency_key=self._key,
        )
        request = InferRequest((text("n", b"%d" % record.number),))
        return self._world.dispatcher.submit(
            InferJob(ModelTarget(self._card.name), request, stream=self._is_stream, terms=terms)
        )

    def _read(self, reader: Any) -> None:
        world, number = self._world, self._record.number
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

    def _take(self, item: Any) -> None:
        number = self._record.number
        if isinstance(item, InferOutputs):
            name, place, position = item.outputs[0].data[0].decode().split()
            if int(name) != number:
                self._world.violate(f"call {number} gets the answer of call {name}")
            self._outputs.append(item)
            self._ledger.add(number, place, int(position))
        elif isinstance(item, InferEnd):
            error = item.error
            self._world.note(f"call {number} ends: {'well' if error is None else error}")
            self._ledger.end(number, error)
            if error is None and not self._outputs:
                self._world.violate(f"call {number} ends well without an answer")
            self._judge(error)
            if error is None and self._key:
                self._repeat()

    def _judge(self, error: CorosrvError | None) -> None:
        if self._began_settled and not self._world.is_closing and error is not None:
            self._world.violate(f"call {self._record.number} fails though all is well: {error}")

    def _repeat(self) -> None:
        """Asks the same again, under the same key: the answer has to be the same, and nothing runs."""
        world, n_starts = self._world, self._record.n_starts
        world.sleep(5.0)
        self._record.deadline = float("inf")
        try:
            reader = self._submit()
        except CorosrvError as error:
            world.note(f"call {self._record.number} is not repeated: {error}")
            return
        items = []
        while batch := reader.take():
            items += batch
        outputs = [item.outputs for item in items if isinstance(item, InferOutputs)]
        is_same = outputs == [item.outputs for item in self._outputs] and items[-1] == InferEnd(None)
        if not is_same or self._record.n_starts != n_starts:
            world.violate(f"call {self._record.number} is repeated under its key, and answered anew")
        world.note(f"call {self._record.number} is repeated, and answered from memory")


class WorkersWorld(World):
    """A Manager and a Dispatcher over the product's side of worker processes, linked with scripted children."""

    name = "workers"

    def start(self) -> None:
        setattr(linked_process, "_socket", SocketModule(self.net))  # noqa: B010 - a stand-in for a module
        self.processes: list[SimProcess] = []
        pids = itertools.count(100)
        self.dispatcher = Dispatcher(DispatchSettings(max_calls=60))
        self.manager = Manager(
            ManagerSettings(workers=2, shutdown_grace=5.0, budget=Claim(memory=MAX_PROCESSES * 1e8)),
            lambda *place: SimAppProcess(self, pids, self.processes, POOLS, CONFIG, *place),
            self.dispatcher,
        )
        self._n_looks = self._next_number = 0
        self.manager.start()
        self.spawn(self._operate)
        self.spawn(self._send_calls)
        self.spawn(self._watch)

    def mend(self) -> None:
        """Does nothing: what has its fate meets none any more, and what starts from now on is well."""
        for pool in self.manager.pools:
            card = next(card for card in POOLS if card.name == pool.name)
            self.manager.scale(pool.name, card.min_workers or 0, card.max_workers or 2)

    def _operate(self) -> None:
        while not self.is_calm:
            self.sleep(15)
            places = self.manager.shown_places
            if self.is_calm or not places:
                continue
            place, chance = self.random.choice(places), self.random.random()
            try:
                if chance < 0.3:
                    self.note(f"an operator drains {place.id}")
                    self.manager.drain(place.id)
                elif chance < 0.5:
                    self.note(f"an operator removes {place.id}")
                    self.manager.remove(place.id, place.incarnation)
                elif chance < 0.7:
                    least = self.random.randint(0, 2)
                    most = least + self.random.randint(0 if least else 1, 2)
                    self.note(f"an operator scales {place.pool} to {least} up to {most}")
                    self.manager.scale(place.pool, least, most)
                elif chance < 0.8:
                    self.note(f"an operator aborts {self.dispatcher.abort(self.random.choice(HANDLERS).key)} calls")
                elif chance < 0.9:
                    self.note("the hub was held")
                    self.loop.stall(self.random.choice((0.1, 0.5)))
            except (NotFound, Refused):
                pass

    def _send_calls(self) -> None:
        while True:
            gap = 40.0 if self.is_calm else self.random.choice((3.0, 0.5, 0.02))
            for _ in range(1 if self.is_calm else self.random.randint(1, 20)):
                self.sleep(gap)
                self._next_number += 1
                self.spawn(Caller(self, self._next_number).run)

    # What must hold.

    def _watch(self) -> None:
        while True:
            gevent.sleep(5 if self.is_calm else 1)
            self.ledger.look()
            for process in self.processes:
                for number, heeds in process.child.running.items():
                    self.ledger.check_runs(number, f"process {process.pid}", SLACK if heeds else LONGEST_HANG)
            if self._next_number % 50 == 0:
                self.processes = [process for process in self.processes if process.exit is None]

    def check(self) -> None:
        self._n_looks += 1
        if self._n_looks % 8 or not self.loop.is_on_time:
            return
        now = self.loop.time
        # A process whose start has failed has two seconds to end, and its room is given away already.
        n_alive = sum(process.holds_memory for process in self.processes)
        if n_alive > MAX_PROCESSES:
            self.violate(f"{n_alive} processes run, and there is memory for {MAX_PROCESSES}")
        for queue in self.dispatcher._waiting:
            free = [group.host.id for group in queue.entry.groups if group.has_free] if queue.depth else []
            if any(queue.head(now, host_id) is not None for host_id in free):
                self.violate(f"a call of {queue.entry.key} waits beside a free permit")
        n_held = sum(queue.traffic.n_in_flight for queue in self.dispatcher._waiting)
        ledgers = {queue.entry.ledger for queue in self.dispatcher._waiting}
        n_charged = sum(account.permits for ledger in ledgers for account in ledger._running)
        if abs(n_held - n_charged) > 0.001:
            self.violate(f"callers are charged for {n_charged} permits, and their calls hold {n_held}")

    def check_calm(self) -> None:
        stats = self.dispatcher.stats()
        n_open = len(self.ledger.open)
        if stats.n_calls > n_open or stats.n_waiting > n_open:
            self.violate(f"{stats.n_calls} calls are counted, and {stats.n_waiting} as waiting, of {n_open}")
        places = [place for pool in self.manager.pools for place in pool.places]
        for place in places:
            if place.state not in (PlaceState.READY, PlaceState.GONE, PlaceState.FAILED):
                self.violate(f"{place.id} is still {place.state.value}")
            if place.state is PlaceState.READY and place.worker is not None:
                self._check_permits(place.worker)
        n_ready = sum(place.state is PlaceState.READY for place in places if place.pool == "default")
        if n_ready != 2:
            self.violate(f"the pool has {n_ready} workers that are ready, and is to have 2")
        n_processes = sum(process.exit is None for process in self.processes)
        n_held = sum(place.state is PlaceState.READY for place in places)
        if n_processes != n_held:
            self.violate(f"{n_processes} processes run for {n_held} workers")

    def _check_permits(self, worker: Any) -> None:
        for group in worker.groups:
            permits = group.permits
            if permits.poisoned or permits.retiring or permits.in_use > worker.in_flight:
                self.violate(f"{worker.id} has {permits.in_use} permits in use, {permits.poisoned} poisoned")

    def close(self) -> None:
        self.manager.stop()
        self.spawn(self._close_late)

    def _close_late(self) -> None:
        gevent.sleep(60)
        if any(process.exit is None for process in self.processes):
            self.violate("a process is left of a server that was stopped")
        self.manager.close()
