"""Runs a world: hours of faults, then calm, then the end; the first violation ends it."""

from __future__ import annotations

import gc
import hashlib
import logging
import random
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gevent
from gevent import Greenlet
from gevent.event import Event

from tests.simulation.checks import Ledger, running_greenlets
from tests.simulation.loop import START, SimLoop, make_hub
from tests.simulation.net import Network

LONGEST = 60.0  # seconds that a call takes at most where all is well
N_SHOWN = 200  # events before a violation


@dataclass(frozen=True, slots=True)
class Run:
    """Says how a run went. `digest`: of all its events; `violation`: empty if all was well."""

    world: str
    seed: int
    n_events: int
    n_turns: int
    seconds: float  # of virtual time
    cpu_seconds: float
    digest: str
    violation: str
    outcomes: Counter[str]
    last_events: tuple[str, ...]


class World(ABC):
    """Owns the clock, the network and the dice of one run, which is the only one of its process."""

    name: ClassVar[str]
    calm: ClassVar[float] = 1200.0  # seconds without faults at the end; after half of them every call goes well

    def __init__(self, seed: int, until: str = "", often: str = "") -> None:
        """`until`: the number of an event, or words that it has; the run ends there.

        `often`: a fate that half of the processes have which may have it.
        """
        self.seed = seed
        self._often = often
        self._until = until
        self._events: deque[str] = deque(maxlen=N_SHOWN)
        self._digest = hashlib.blake2b(digest_size=8)
        self._n_events = 0
        self._violation = ""
        self._is_over = Event()
        self._greenlets: dict[Greenlet, None] = {}
        hub = make_hub(seed)
        hub.handle_error = self._on_error
        self.loop: SimLoop = hub.loop
        self.random = random.Random(f"world {seed}")
        self.net = Network(self.loop, random.Random(f"net {seed}"))
        self.ledger = Ledger(lambda: self.loop.time, self.violate)
        self.is_calm = self.is_closing = False
        self.calm_since = float("inf")
        self._watch_logs()

    # What worlds use.

    def note(self, words: str) -> None:
        """Records an event."""
        self._n_events += 1
        line = f"{self._n_events:7d} {self.loop.time - START:11.4f}  {words}"
        self._digest.update(line.encode())
        self._events.append(line)
        if self._until and (self._until in line if not self._until.isdigit() else self._n_events >= int(self._until)):
            self._end()

    def violate(self, words: str) -> None:
        """Records what must not be, and ends the run."""
        if not self._violation:
            self._violation = words
            self.note(f"VIOLATION: {words}")
            self._end()

    def _end(self) -> None:
        self.loop.add_callback(None, self._is_over.set)  # whoever's code has asked for it

    def spawn(self, function: Any, *arguments: Any) -> Greenlet:
        """Runs a part of the world itself."""
        greenlet = gevent.spawn(function, *arguments)
        self._greenlets[greenlet] = None
        greenlet.rawlink(lambda greenlet: self._greenlets.pop(greenlet, None))
        return greenlet

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def draw_fate(self, fates: Sequence[str]) -> str:
        """Draws what becomes of a process that starts now; in the calm all are well."""
        if self.is_calm:
            return "is well"
        return self._often if self._often in fates and self.chance(0.5) else self.random.choice(fates)

    def sleep(self, mean: float) -> None:
        """Waits for a time that is drawn."""
        gevent.sleep(self.random.expovariate(1 / mean))

    @property
    def is_settled(self) -> bool:
        """Tells whether the last fault is so long ago that every new call has to go well, until the end."""
        return self.loop.time >= self.calm_since + self.calm / 2 and not self.is_closing

    # What a world is.

    @abstractmethod
    def start(self) -> None:
        """Starts the parts, their faults and their clients."""

    @abstractmethod
    def mend(self) -> None:
        """Ends all faults."""

    @abstractmethod
    def check(self) -> None:
        """Looks at what must hold at every moment. Called when nothing is left to do at this time."""

    @abstractmethod
    def check_calm(self) -> None:
        """Looks at what must hold `calm` seconds after the last fault."""

    @abstractmethod
    def close(self) -> None:
        """Ends the product's parts; everything of them is over a minute later."""

    def release(self) -> None:  # noqa: B027 - most worlds have nothing outside
        """Ends what the world has outside of its process."""

    # The run.

    def run(self, minutes: float) -> Run:
        """Runs the world to its end, or to its first violation."""
        gc.collect()
        gc.disable()  # what is found in circles would end at other times with other hash seeds
        self.loop.before_time = self._look
        try:
            self._live(60 * minutes)
        except Exception:
            self.violate(f"the world itself failed: {traceback.format_exc()}")
        finally:
            self.release()
        return Run(
            self.name, self.seed, self._n_events, self.loop.n_calls, self.loop.time - START, time.process_time(),
            self._digest.hexdigest(), self._violation, self.ledger.outcomes, tuple(self._events),
        )  # fmt: skip

    def _live(self, seconds: float) -> None:
        self.start()
        if self._passes(seconds):
            return
        self.note("calm")
        self.is_calm, self.calm_since = True, self.loop.time
        self.mend()
        if self._passes(self.calm):
            return
        self.check_calm()
        self._check_calls()
        self.note("close")
        self.is_closing = True
        self.close()
        if self._passes(120):
            return
        gevent.killall(list(self._greenlets))
        if not self._passes(5):
            self._check_rest()

    def _passes(self, seconds: float) -> bool:
        """Lets time pass. Returns whether the run is over meanwhile."""
        return bool(self._is_over.wait(seconds))

    def _look(self) -> None:
        try:
            self.check()
        except Exception:
            self.violate(f"a check failed: {traceback.format_exc()}")

    def _check_calls(self) -> None:
        if old := [record.number for record in self.ledger.open if record.began_at < self.loop.time - LONGEST]:
            self.violate(f"calls {old[:5]} have not ended, long after the last fault")

    def _check_rest(self) -> None:
        """Looks for what is left of a server that was closed."""
        gc.collect()
        if greenlets := running_greenlets():
            self.violate(f"greenlets are left: {dict(greenlets)}")
        if n_sockets := self.net.n_open():
            self.violate(f"{n_sockets} ends of connections are left open")
        if self.loop.watchers:
            self.violate(f"{len(self.loop.watchers)} descriptors are still watched")
        if self.loop.n_alarms > 0:
            self.violate(f"{self.loop.n_alarms} timers are left")

    # What the product must not do.

    def _on_error(self, context: object, kind: Any, error: Any, trace: Any) -> None:
        if issubclass(kind, gevent.GreenletExit):
            return
        if issubclass(kind, (SystemExit, KeyboardInterrupt)):
            raise error
        self.violate(f"a greenlet failed: {''.join(traceback.format_exception(kind, error, trace))}")

    def _watch_logs(self) -> None:
        world = self

        class Watch(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.exc_info is not None or record.name == "corosrv.permits":
                    world.violate(f"logged: {self.format(record)}")

        logging.basicConfig(handlers=[Watch(logging.WARNING)], force=True)
