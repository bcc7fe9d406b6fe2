"""Workers, clients and operators that do anything at any time, beside a dispatcher; and what must hold all the while.

Everything is drawn from one seed, and time is an event heap: no run differs from the next.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from corosrv.base.errors import (
    CallRefused,
    CorosrvError,
    DeadlinePassed,
    HandlerFailed,
    NotHandedOver,
    Refused,
    Unavailable,
)
from corosrv.contracts.jobs.infer import BatchLimits, HandlerCard, InferEnd, InferOutputs
from corosrv.workers.dispatch.answers import HandlerReader
from corosrv.workers.dispatch.host import CallListener, HandedCall, Permit
from corosrv.workers.dispatch.key_queue import KeyQueue
from corosrv.workers.dispatch.ledger import CallerAccount
from tests.workers.dispatch.hosts import FakeCall, FakeHost, Front, card, outputs, text, texts

CARDS = [
    card("plain", max_queue=2),
    card("idempotent", is_idempotent=True, slo_ms=500, max_queue=5),
    card("stream", is_idempotent=True, is_stream=True, unary="join"),
    card("batch", is_idempotent=True, batch=BatchLimits(4, 20)),
    card("once", batch=BatchLimits(8, 5)),
    card("predicts", admission="predict", timeout_ms=3000),
]
CALLERS: list[dict[str, object]] = [
    {"caller": "a"}, {"caller": "b", "weight": 3.0}, {"caller": "c", "tier": 2}, {"caller": "c", "owner": "d"}, {}
]  # fmt: skip


@dataclass(eq=False)
class ClientCall:
    """One call as its client sees it."""

    number: int
    card: HandlerCard
    deadline: float
    is_stream: bool
    only_host: str
    reader: HandlerReader | None = None
    has_ended: bool = False
    n_starts: int = 0
    n_answers: int = 0


class SimulatedHost(FakeHost):
    """Ends what it is given after a random time, in one of the ways that workers have."""

    simulation: Simulation

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> FakeCall:
        running = super().start_call(permit, call, listener)
        self.simulation.check_start(self, call)
        if self.simulation.random.random() < 0.01:
            self.simulation.forget_start(call)
            running.fail(NotHandedOver("the lane is closed"))
        else:
            self.simulation.after(self.simulation.random.expovariate(10), lambda: self._work(running))
        return running

    def _work(self, running: FakeCall) -> None:
        if not running.running:
            return
        handler, chance = self.handlers[running.call.handler], self.simulation.random.random()
        name = "text_output" if handler.unary == "join" else "out"
        if chance < 0.03:
            running.fail(HandlerFailed("it raised"))
            return
        for item in sorted(running.running):
            if self.simulation.random.random() < 0.05:
                running.end(item, CallRefused("not this one"))
                continue
            number = running.call.items[item].request.inputs[0].data[0]
            for piece in [number] if not handler.is_stream else [number[:2], number[2:]]:
                running.send(outputs(text(name, piece)), item)
            running.end(item)


@dataclass
class Simulation:
    """`run` does so many events; `finish` lets everything end and checks that nothing is left."""

    seed: int
    random: random.Random = field(init=False)
    front: Front = field(init=False)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.front = Front.make(jitter=self.random.random, max_calls=12)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count(100_000)
        self.incarnations = itertools.count(1)
        self.hosts: dict[str, SimulatedHost] = {}
        self.by_number: dict[bytes, ClientCall] = {}
        self.is_chaotic = True
        self.front.dispatcher.expect("p", CARDS)
        for place in range(3):
            self.start_host(place)

    # Time.

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.front.clock.now + seconds, next(self.numbers), event))

    def run(self, n_events: int) -> None:
        for _ in range(n_events):
            self.after(0, self.anything)
            self.advance(self.random.expovariate(80))

    def advance(self, seconds: float) -> None:
        end = self.front.clock.now + seconds
        while self.events and self.events[0][0] <= end:
            at, _, event = heapq.heappop(self.events)
            self.front.clock.pass_time(max(at - self.front.clock.now, 0))
            event()
        self.front.clock.pass_time(max(end - self.front.clock.now, 0))
        self.check_rest()
        self.read_all()

    # What may happen.

    def anything(self) -> None:
        chance = self.random.random()
        if chance < 0.9:
            self.submit()
        elif chance < 0.94 and self.by_number:
            self.cancel()
        elif chance < 0.95:
            self.front.dispatcher.abort(self.random.choice(CARDS).key)
        elif chance < 0.97 and self.is_chaotic:
            self.lose_host()
        elif chance < 0.98 and self.is_chaotic:
            self.drain_host()
        elif chance < 0.99:
            # A timer that is late: calls become overdue, and nobody has told.
            self.front.clock.now += self.random.choice([0.01, 1])

    def submit(self) -> None:
        handler = self.random.choice(CARDS)
        number = next(self.numbers)
        is_stream = self.random.random() < 0.5
        seconds = self.random.choice([None, 0.05, 0.5, 5])
        only_host = self.random.choice(["", "", "", "p/0", "p/1", "p/7"])
        call = ClientCall(
            number, handler, float("inf") if seconds is None else self.front.clock.now + seconds, is_stream, only_host
        )
        name = b"%d" % number
        self.by_number[name] = call
        try:
            call.reader = self.front.call(
                handler.name, text("n" if self.random.random() < 0.8 else "m", name),
                seconds=seconds, stream=is_stream, only_host=only_host, priority=self.random.randint(0, 9),
                session=self.random.choice(["", "", "s1", "s2"]), waits=self.random.random() < 0.95,
                **self.random.choice(CALLERS),
            )  # fmt: skip
        except (Unavailable, Refused, DeadlinePassed) as error:
            del self.by_number[name]
            self.outcomes[type(error).__name__] += 1
            assert call.n_starts == 0

    def cancel(self) -> None:
        call = self.random.choice(list(self.by_number.values()))
        if call.reader is not None and not call.has_ended:
            self.random.choice([call.reader.cancel, call.reader.close])()
            self.read(call)
            if not call.has_ended:  # closed: it reads no end
                self.note_end(call, "closed")

    def start_host(self, place: int) -> None:
        host = SimulatedHost(f"p/{place}", CARDS, next(self.incarnations), n_slots=self.random.randint(1, 4))
        host.simulation = self
        self.hosts[host.id] = host
        assert self.front.dispatcher.add_host(host)

    def lose_host(self) -> None:
        host = self.random.choice(list(self.hosts.values()))
        if self.random.random() < 0.5:
            self.front.dispatcher.remove_host(host)
            host.die()
        else:
            host.die()
            self.front.dispatcher.remove_host(host)
        self.after(
            self.random.expovariate(3), lambda: self.start_host(int(host.id[2:])) if not self.lives(host) else None
        )

    def lives(self, host: FakeHost) -> bool:
        return self.hosts[host.id] is not host

    def drain_host(self) -> None:
        host = self.random.choice(list(self.hosts.values()))
        host.drain()
        self.after(0.5, lambda: self.start_host(int(host.id[2:])) if self.hosts[host.id] is host else None)

    # What must hold.

    def check_start(self, host: SimulatedHost, call: HandedCall) -> None:
        now = self.front.clock.now
        for item in call.items:
            client = self.by_number[item.request.inputs[0].data[0]]
            client.n_starts += 1
            assert not client.has_ended, "a call that has ended reaches a handler"
            assert client.reader is None or not client.reader._has_ended
            assert client.only_host in ("", host.id), "a call reaches another host than its only one"
            assert client.deadline > now, "an overdue call reaches a handler"
            assert client.n_starts <= (2 if client.card.is_idempotent else 1), "a call starts too often"
        assert not host.is_draining
        assert host.permits.in_use <= host.permits.total
        if len(call.items) > 1:
            assert len({item.request.inputs[0].name for item in call.items}) == 1

    def forget_start(self, call: HandedCall) -> None:
        for item in call.items:
            self.by_number[item.request.inputs[0].data[0]].n_starts -= 1

    def check_rest(self) -> None:
        waiting = self.front.dispatcher._waiting
        total, accounts = 0, Counter[CallerAccount]()
        for queue in waiting:
            traffic = queue.traffic
            assert queue.depth == traffic.n_admitted - traffic.n_dispatched - traffic.n_left
            assert queue.depth == len(waiting.calls_of(queue.entry.key))
            total += queue.depth
            accounts.update(call.account for call in waiting.calls_of(queue.entry.key))
            if queue.entry.has_free and self.front.clock.rings_at > self.front.clock.now:
                self.check_idle(queue)
        for key, shares in waiting._shares.items():
            counts = Counter(call.account.caller for queue in waiting for call in waiting.calls_of(queue.entry.key)
                             if key in ("", call.key))  # fmt: skip
            assert {caller: shares.n_calls(caller) for caller in shares._accounts} == counts
        assert all(account.n_waiting == n_waiting for account, n_waiting in accounts.items())
        # Those that wait again are not refused, and so may be more than the limit allows.
        assert total == waiting.bounds.n_calls <= 32

    def check_idle(self, queue: KeyQueue) -> None:
        now = self.front.clock.now
        for call in self.front.dispatcher._waiting.calls_of(queue.entry.key):
            gathers = call.entry.batch_limits is not None and queue.next_ready() > now
            sticks = call.local_host is not None and now < call.stealable_at
            avoids = call.local_host is not None and call.avoided is not None
            is_pinned = bool(call.job.only_host) and not call.offer.has_free
            assert gathers or sticks or avoids or is_pinned, "a call waits beside a free permit"

    def read_all(self) -> None:
        for call in list(self.by_number.values()):
            self.read(call)

    def read(self, call: ClientCall) -> None:
        reader = call.reader
        if reader is None or not (reader._items or reader._has_ended) or call.has_ended:
            return
        items = reader.take()
        for item in items:
            assert not call.has_ended, "something comes after the end"
            if isinstance(item, InferOutputs):
                call.n_answers += 1
                number = b"%d" % call.number
                assert b"".join(texts([item])) in (number, number[:2], number[2:]), "an answer of another call"
            else:
                self.check_end(call, item)

    def check_end(self, call: ClientCall, end: InferEnd) -> None:
        error: CorosrvError | None = end.error
        if error is None and not (call.is_stream and call.card.is_stream):
            assert call.n_answers == 1
        self.note_end(call, "ok" if error is None else type(error).__name__)

    def note_end(self, call: ClientCall, outcome: str) -> None:
        call.has_ended = True
        self.outcomes[outcome] += 1
        del self.by_number[b"%d" % call.number]

    def finish(self) -> None:
        self.is_chaotic = False
        for _ in range(100):
            if not self.by_number:
                break
            self.advance(1)
        assert not self.by_number, "calls were not answered"
        self.advance(60)
        stats = self.front.dispatcher.stats()
        assert (stats.n_calls, stats.n_waiting, stats.n_waiting_bytes) == (0, 0, 0)
        assert all(key.depth == 0 and key.in_flight == 0 for key in stats.keys)
        for host in self.hosts.values():
            assert host.permits.in_use == 0
        for entry in self.front.dispatcher._registry:
            assert not entry.ledger._running
            assert all(account.is_idle and not account.n_waiting for account in entry.ledger._accounts.values())
        assert len(self.front.dispatcher._timetable) == 0


class Crowds:
    """Callers with so many clients that their calls always wait, beside one worker whose permits they share.

    The calls of each are for other handlers, and take other times. Some are cancelled.
    """

    HANDLERS = (card("short", max_queue=400), card("long", max_queue=400), card("batch", batch=BatchLimits(4, 0)))
    N_PERMITS = 4
    LONGEST = 2.0  # seconds of a call

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.front = Front.make()
        self.weights = {name: self.random.choice([1.0, 2.0, 4.0]) for name in "abc"}
        self.had = dict.fromkeys(self.weights, 0.0)  # seconds of permits
        self.host = self.front.add("p/0", *self.HANDLERS, n_slots=self.N_PERMITS)
        self.ends: list[tuple[float, int, FakeCall, float]] = []
        self.known: set[FakeCall] = set()
        for name in self.weights:
            for _ in range(40):
                self.submit(name)

    def submit(self, name: str) -> HandlerReader:
        models = {"a": ["short"], "b": ["long"], "c": ["short", "batch"]}
        model = self.random.choice(models[name])
        return self.front.call(model, text("n", b"1"), caller=name, weight=self.weights[name])

    def run(self, seconds: float) -> None:
        end = self.front.clock.now + seconds
        self.note_starts()
        while self.ends[0][0] < end:
            at, _, call, began = heapq.heappop(self.ends)
            self.front.clock.pass_time(max(at - self.front.clock.now, 0))
            names = [item.caller for item in call.call.items]
            for name in names:
                self.had[name] += (self.front.clock.now - began) / len(names)
            call.finish()
            for name in names:
                reader = self.submit(name)
                if self.random.random() < 0.05:
                    reader.cancel()
                    self.submit(name)
            self.note_starts()
            self.check()

    def note_starts(self) -> None:
        now = self.front.clock.now
        for call in self.host.calls:
            if call not in self.known:
                self.known.add(call)
                longest = self.LONGEST if call.call.handler == 1 else self.LONGEST / 10
                at = now + self.random.uniform(0, longest)
                heapq.heappush(self.ends, (at, self.host.n_started * 100 + len(self.ends), call, now))

    def check(self) -> None:
        """What has ended of each caller, by its weight, differs by less than twice the longest call for each permit."""
        shares = [had / self.weights[name] for name, had in self.had.items()]
        assert max(shares) - min(shares) < 2 * self.LONGEST * self.N_PERMITS, self.had
