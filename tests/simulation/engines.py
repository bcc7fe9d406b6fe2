"""The world *engines*: fronts that share one engine's process, which is killed, stopped, hung and poisoned.

The fronts' side and the process's are the real code, over the Unix sockets of `unix`; what decodes is the stand-in of
`decoding`, so that races of the native thread are not looked for here (tests/native has ThreadSanitizer for those).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pkgutil
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import gevent
from gevent.event import Event

from corosrv.base.errors import CorosrvError, EngineGone, ProtocolError, ReadTimeout
from corosrv.contracts.jobs import Chunk, Finish, Job, Sampling, Terms, Tokens
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import process as package
from corosrv.models.engine.process import connector
from corosrv.models.engine.process.connector import digest_of
from corosrv.models.engine.process.host import FIRST_FRONT, LINGER
from corosrv.models.engine.process.jobs import SECOND_DEATH
from corosrv.models.engine.process.messages import WINDOW
from corosrv.models.engine.process.remote import HUNG, RemoteEngine
from corosrv.models.engine.tasks import _seed_of
from tests.simulation.checks import CallRecord
from tests.simulation.decoding import PLAIN, POISON, READER_BYTES, WIDE, EngineProcess, course
from tests.simulation.unix import LocalProcess, Machine, SocketCalls, SystemCalls, UnixSocket
from tests.simulation.world import World

SETTINGS = ModelSettings(model="synthetic:?tokens_per_s=0", slots=4, queue=16, ctx=512)
N_FRONTS = 3
LIVES = 3  # of the engine, that a poisonous job costs at most
CANCEL = 10.0  # seconds in which a cancel ends a job where all is well
ENDS = {  # what the message of an answer that ends with an error begins with, and when that may be
    "the engine is closed": "",
    "the engine was lost, and could not be started again": "",
    "this request has ended the engine three times": "poison",
}
LEAVES = ("cancel", "leave", "drop")
WAYS = ("read", "read", "read", "pump", "pump", "pump", "slow", "slow", *LEAVES)  # of clients
FAR = float("inf")


class Client:
    """Asks a front for some answers, compares them with what an undisturbed engine says, and may cancel or leave."""

    def __init__(self, world: EnginesWorld, front: Front, number: int, kind: int) -> None:
        random = world.random
        self.number, self.kind = number, kind
        self.front = front
        self.prompt = (kind, number >> 14 & 127, number >> 7 & 127, number & 127)
        self._world = world
        self._record = CallRecord(number=number)
        self._max_tokens = random.randint(1, 60)
        n_answers = random.choice((1, 1, 1, 2, 3)) if kind == PLAIN else 1
        self._courses = [course(self.prompt, _seed_of(number, n), self._max_tokens) for n in range(n_answers)]
        self._n_bytes = [0] * n_answers
        self._n_tokens = [0] * n_answers
        self._ends: list[Finish | None] = [None] * n_answers
        self._began_settled = world.is_settled
        self._way = "read" if world.is_calm else random.choice(WAYS)
        self._acts_at = world.loop.time + random.expovariate(0.5) if self._way in LEAVES else FAR
        self._cancelled_at = FAR
        self.is_lost = False
        self.reader: Any = None
        self._n_restarts = 0

    @property
    def is_over(self) -> bool:
        return self._record.ended_at != FAR

    def run(self) -> None:
        world, number = self._world, self.number
        world.ledger.begin(self._record)
        world.note(f"job {number} of kind {self.kind} begins at {self.front.name} and will {self._way}")
        self.front.clients[self] = None
        try:
            self._submit()
        except CorosrvError as error:
            if not self.is_lost:
                world.note(f"job {number} is refused: {type(error).__name__}: {error}")
                world.ledger.refuse(number, error)
                self._judge(error)
            return
        finally:
            if self.reader is None:
                self.front.clients.pop(self, None)
        try:
            self._read()
        finally:
            self.reader = None
            self.front.clients.pop(self, None)

    def _submit(self) -> None:
        engine = self._engine = self.front.engine
        assert engine is not None
        job = Job(
            (Tokens(self.prompt),), max_tokens=self._max_tokens, n=len(self._courses),
            sampling=Sampling(temperature=0, seed=self.number), terms=Terms(caller=self.front.name),
        )  # fmt: skip
        self.reader = engine.submit(job)
        self._n_restarts = engine.n_restarts

    def lose(self) -> None:
        """Hears that its front was killed."""
        if not self.is_over:
            self.is_lost = True
            self._world.ledger.leave(self.number)

    # Reading

    def _read(self) -> None:
        while not self.is_over:
            if self._way == "pump":
                self.reader.pump(self._take)
            elif not self._act():
                self._take_some()
        if not self.is_lost and self.reader is not None and None not in self._ends and not self.reader.is_finished:
            self._world.violate(f"job {self.number} has ended, and its reader has not")

    def _act(self) -> bool:
        """Leaves, or cancels, once it is time for that; returns whether it has left."""
        if self._world.loop.time < self._acts_at:
            return False
        self._world.note(f"job {self.number}: the client does {self._way}")
        self._acts_at = FAR
        if self._way == "cancel":
            self.reader.cancel()
            self._cancelled_at = self._world.loop.time
            return False
        if self._way == "leave":
            self.reader.close()
        self.reader = None
        self._world.ledger.leave(self.number)
        return True

    def _take_some(self) -> None:
        if self._way == "slow" and not self._world.is_calm:
            self._world.sleep(2.0)
        timeout = None if self._acts_at == FAR else max(self._acts_at - self._world.loop.time, 0.001)
        with contextlib.suppress(ReadTimeout):
            self._take(self.reader.take(timeout))

    def _take(self, chunks: list[Chunk]) -> bool:
        if self.is_lost:
            return False
        if not chunks and None in self._ends:
            self._world.violate(f"the reader of job {self.number} is over, and {self._ends} are its ends")
        for chunk in chunks:
            self._add(chunk)
        return not self.is_over

    def _add(self, chunk: Chunk) -> None:
        world, place = self._world, chunk.index
        if self._ends[place] is not None:
            world.violate(f"answer {place} of job {self.number} gets {chunk.finish or 'text'} after its end")
        right = self._courses[place]
        if chunk.finish is not Finish.ERROR:
            text, at = chunk.text.encode(), self._n_bytes[place]
            if right.text[at : at + len(text)] != text:
                world.violate(f"answer {place} of job {self.number} has wrong text at byte {at}: {text[:40]!r}")
            self._n_bytes[place] += len(text)
            self._n_tokens[place] += chunk.n_tokens
        if chunk.finish is not None:
            self._end(place, chunk)

    def _end(self, place: int, chunk: Chunk) -> None:
        world, right, finish = self._world, self._courses[place], chunk.finish
        self._ends[place] = finish
        world.note(f"answer {place} of job {self.number} ends: {finish} {chunk.text if finish is Finish.ERROR else ''}")
        if finish is Finish.ERROR:
            reason = next((words for words in ENDS if chunk.text.startswith(words)), None)
            if reason is None or (ENDS[reason] and self.kind != POISON):
                world.violate(f"answer {place} of job {self.number} ends with {chunk.code}: {chunk.text}")
        elif finish is Finish.CANCELLED:
            if self._cancelled_at == FAR:
                world.violate(f"answer {place} of job {self.number} is cancelled, and nobody has asked for it")
        elif (self._n_bytes[place], self._n_tokens[place], finish) != (len(right.text), len(right.ids), right.finish):
            world.violate(
                f"answer {place} of job {self.number} ends with {finish} after {self._n_bytes[place]} bytes and "
                f"{self._n_tokens[place]} tokens of {len(right.text)} and {len(right.ids)}"
            )
        if None not in self._ends:
            error = EngineGone(chunk.text) if finish is Finish.ERROR else None
            world.ledger.end(self.number, error)
            self._judge(error)

    def _judge(self, error: CorosrvError | None) -> None:
        world = self._world
        if not self._began_settled or world.is_closing:
            return
        if error is not None:
            world.violate(f"job {self.number} fails though all is well: {error}")

    def look(self) -> None:
        """Looks at what must hold while it reads."""
        world = self._world
        if self.reader is None or self.front.process.is_stopped:
            return
        if world.is_settled and not self.is_over and world.loop.time > self._cancelled_at + CANCEL:
            world.violate(f"job {self.number} goes on {CANCEL:g} s after its cancel")
        n_unread = sum(len(chunk.text) for chunk in self.reader._items)
        # Each engine may send as much anew as its front leaves unread.
        if n_unread > (1 + self._engine.n_restarts - self._n_restarts) * (WINDOW + 4 * READER_BYTES):
            world.violate(f"job {self.number} has {n_unread} bytes that are not read")


class Front:
    """One life of a front's process, which opens the engine, leaves it at times, and opens it again."""

    def __init__(self, world: EnginesWorld, name: str) -> None:
        self.name = name
        self.engine: RemoteEngine | None = None  # while it is open
        self.latest: RemoteEngine | None = None  # that was made
        self.clients: dict[Client, None] = {}
        self.leaves = Event()
        self.n_kept = 0  # looks at which it waited for the greeting of an engine that is stopped
        self.process: LocalProcess = world.machine.start(name)
        self._world = world
        self.process.run(self._serve)

    def _serve(self) -> None:
        world = self._world
        while not world.is_closing:
            engine = self.latest = RemoteEngine(SETTINGS, world.machine.folder)
            try:
                engine.open()
            except CorosrvError as error:
                world.note(f"{self.name} cannot open the engine: {error}")
                engine.close()
                gevent.sleep(1.0)
                continue
            world.note(f"{self.name} has opened the engine {engine.pid}")
            self.engine = engine
            self.leaves.clear()
            self.leaves.wait()
            self._leave(engine)

    @property
    def is_ungreeted(self) -> bool:
        """Whether it has connected to an engine that has not greeted."""
        is_connected = any(end.is_connected for end in self.process.sockets)
        return is_connected and self.latest is not None and self.latest.pid is None

    def _leave(self, engine: RemoteEngine) -> None:
        world = self._world
        world.note(f"{self.name} closes the engine")
        self.engine = None
        engine.close()
        if engine._ledger.jobs or engine._ledger.submissions or engine._questions:
            world.violate(
                f"{self.name} has closed the engine, and keeps {len(engine._ledger.jobs)} jobs and "
                f"{len(engine._questions)} questions"
            )
        seconds = world.random.choice((0.1, 3.0, 100.0))
        gevent.sleep(seconds)
        if seconds > 70 and (n_open := sum(end.is_connected for end in self.process.sockets)):
            world.violate(f"{self.name} has closed the engine, and keeps {n_open} connections to it")

    def ask(self) -> None:
        """Asks about slots, and sets the scales of adapters; an answer or an error comes."""
        engine, began = self.engine, self._world.loop.time
        if engine is None:
            return
        with contextlib.suppress(CorosrvError):
            engine.slots()
            self._world.n_scalings += 1
            engine.set_adapters({0: float(self._world.n_scalings)})
        if self._world.loop.time > began + 125 and not self._world.is_stalled_since(began):
            self._world.violate(
                f"{self.name} has waited {self._world.loop.time - began:.0f} s for an answer about slots"
            )

    def die(self) -> None:
        self._world.note(f"{self.name} is killed")
        for client in list(self.clients):
            client.lose()
        self._world.machine.end(self.process)


class EnginesWorld(World):
    """Three fronts on one engine's process, over the sockets, files and processes of one machine."""

    name = "engines"
    calm = 400.0  # a front that has lost its engine looks for another one for two minutes, and clients wait as long

    def start(self) -> None:
        self.machine = Machine(self, tempfile.mkdtemp(prefix="simulated-"))
        self.digest = digest_of(SETTINGS)
        self._put_in_place()
        logging.getLogger("corosrv.engine").addFilter(self._see_record)
        self._n_lives = self._next_number = self.n_scalings = 0
        self.scales_of: dict[tuple[tuple[int, ...], int], Sequence[float] | None] = {}  # by prompt and seed
        self._poison: Client | None = None
        self._crashes: list[float] = []  # when engines died of it
        self._crashed_at = -FAR
        self._stopped_at = -FAR  # when a process was stopped, or went on, last
        self.fronts = [self._start_front(number) for number in range(N_FRONTS)]
        self.spawn(self._operate)
        self.spawn(self._send_jobs)
        self.spawn(self._watch)

    def release(self) -> None:
        shutil.rmtree(self.machine.folder, ignore_errors=True)

    def _put_in_place(self) -> None:
        names = [found.name for found in pkgutil.iter_modules(package.__path__) if found.name != "__main__"]
        sockets, system = SocketCalls(self.machine), SystemCalls(self.machine, self._kill_hung)
        for module in (importlib.import_module(f"{package.__name__}.{name}") for name in names):
            for name, stand_in in (("_socket", sockets), ("os", system)):
                if hasattr(module, name):
                    setattr(module, name, stand_in)
        setattr(connector, "Process", self._start_engine)  # noqa: B010 - a stand-in for a class

    def _start_front(self, number: int) -> Front:
        self._n_lives += 1
        return Front(self, f"front-{number}.{self._n_lives}")

    def _start_engine(self, command: Sequence[str], inherited: Iterable[int]) -> EngineProcess:
        if others := self.engines:
            self.violate(f"an engine is started while {[engine.pid for engine in others]} lives")
        process: EngineProcess = self.machine.start("engine", EngineProcess)
        self.note(f"engine {process.pid} starts, and {process.fate}")
        process.start(command, inherited)
        return process

    @property
    def engines(self) -> list[EngineProcess]:
        return [process for process in self.machine.processes.values() if isinstance(process, EngineProcess)]

    def _see_record(self, record: logging.LogRecord) -> bool:
        """Tells of a front that was cut off for what it has sent, whole."""
        if isinstance(record.args, tuple) and any(isinstance(fault, ProtocolError) for fault in record.args):
            self.violate(record.getMessage())
        return True

    # Faults

    def mend(self) -> None:
        self._hang_engine()  # the last fault, which fronts have to find
        for process in list(self.machine.processes.values()):
            process.go_on()
        for number, front in enumerate(self.fronts):
            if not front.process.is_alive:
                self.fronts[number] = self._start_front(number)

    def _operate(self) -> None:
        faults = (
            (self._kill_engine, 6), (self._stop_engine, 2), (self._hang_engine, 1), (self._cut_link, 4),
            (self._replace_front, 2), (self._stop_front, 2), (self._leave_engine, 2), (self._stall, 2), (self._ask, 3),
        )  # fmt: skip
        while not self.is_calm:
            self.sleep(self.random.choice((0.5, 5.0, 15.0)))
            if self.is_calm:
                return
            (fault,) = self.random.choices([fault for fault, _ in faults], [weight for _, weight in faults])
            self.ledger.outcomes["faults"] += 1
            fault()

    def _kill_engine(self) -> None:
        for engine in self.engines:
            self.note(f"engine {engine.pid} is killed")
            self.machine.end(engine)

    def _kill_hung(self, pid: int) -> None:
        self.note(f"engine {pid} is killed by a front")
        self.machine.end(self.machine.processes[pid])

    def _stop_engine(self) -> None:
        for engine in self.engines:
            self.spawn(self._stop, engine)

    def _stop_front(self) -> None:
        self.spawn(self._stop, self.random.choice(self.fronts).process)

    def _stop(self, process: LocalProcess) -> None:
        seconds = self.random.choice((0.3, 4.0, 25.0, 60.0))
        self.note(f"{process.name} {process.pid} is stopped for {seconds:g} s")
        process.stop()
        gevent.sleep(seconds)
        self._stopped_at = self.loop.time
        process.go_on()

    def _hang_engine(self) -> None:
        for engine in self.engines:
            if engine.engine is not None:
                self.note(f"engine {engine.pid} hangs")
                engine.engine.is_hung = True

    def _cut_link(self) -> None:
        links = [end for engine in self.engines for end in engine.sockets if end.is_connected]
        if links:
            link: UnixSocket = self.random.choice(links)
            self.note("a connection is cut")
            link.cut()

    def _replace_front(self) -> None:
        number = self.random.randrange(N_FRONTS)
        if self.fronts[number].process.is_alive:
            self.fronts[number].die()
            self.spawn(self._bring_back, number)

    def _bring_back(self, number: int) -> None:
        self.sleep(self.random.choice((0.1, 5.0)))
        if not self.fronts[number].process.is_alive:
            self.fronts[number] = self._start_front(number)

    def _leave_engine(self) -> None:
        # At times all at once, so that nobody is left.
        for front in self.fronts if self.chance(0.3) else [self.random.choice(self.fronts)]:
            self._tell_to_leave(front)

    def _tell_to_leave(self, front: Front) -> None:
        if front.process.is_alive:
            front.process.run(front.leaves.set)

    def _stall(self) -> None:
        self.note("the hub was held")
        self.loop.stall(self.random.choice((0.1, 0.5, 3.0)))

    def _ask(self) -> None:
        front = self.random.choice(self.fronts)
        if front.process.is_alive:
            front.process.run(front.ask)

    def is_stalled_since(self, moment: float) -> bool:
        """Tells whether a process may have been stopped since then."""
        return self._stopped_at >= moment or any(process.is_stopped for process in self.machine.processes.values())

    # Jobs

    def _send_jobs(self) -> None:
        while True:
            gap = 8.0 if self.is_calm else self.random.choice((3.0, 0.5, 0.05))
            for _ in range(1 if self.is_calm else self.random.randint(1, 10)):
                self.sleep(gap)
                if self.is_closing:
                    return
                self._send_job(self.random.choice(self.fronts))

    def _send_job(self, front: Front) -> None:
        if front.engine is None or not front.process.is_alive:
            return
        kind = self.random.choice((PLAIN,) * 12 + (WIDE,))
        if self.may_poison(front) and self.chance(0.3):
            kind = POISON
        self._next_number += 1
        client = Client(self, front, self._next_number, kind)
        if kind == POISON:
            self._poison, self._crashes = client, []
        front.process.run(client.run)

    def may_poison(self, front: Front) -> bool:
        """Tells whether a job that kills engines can be told from its neighbours: no other one has lately."""
        if self.is_calm or (self._poison is not None and not self._poison.is_over):
            return False
        others = any(other.engine is not None and other.engine._ledger.suspects._suspects for other in self.fronts)
        return not others and self.loop.time > max(self._crashed_at, self._stopped_at) + 2 * SECOND_DEATH

    def note_crash(self, process: EngineProcess, prompt: tuple[int, ...]) -> None:
        """Takes note that an engine dies of a prompt."""
        now, self._crashed_at = self.loop.time, self.loop.time
        if self._poison is None or self._poison.prompt != prompt:
            return
        # Deaths that its front has seen a minute apart are chance, for all that it knows.
        if self._crashes and (now > self._crashes[-1] + SECOND_DEATH - 20 or self.is_stalled_since(self._crashes[0])):
            self._crashes.clear()
        self._crashes.append(now)
        if len(self._crashes) > LIVES:
            self.violate(f"job {self._poison.number} ends its {len(self._crashes)}th engine")

    # What must hold

    def _watch(self) -> None:
        while True:
            gevent.sleep(5 if self.is_calm else 1)
            self.ledger.look()
            for engine in self.engines:
                self._look_at_fronts_of(engine)
            for front in self.fronts:
                if (n_open := sum(end.is_connected for end in front.process.sockets)) > 2:
                    self.violate(f"{front.name} has {n_open} connections to the engine")
                for client in list(front.clients):
                    client.look()

    def _look_at_fronts_of(self, engine: EngineProcess) -> None:
        waits = (front.latest is not None and front.latest.pid == engine.pid for front in self.fronts)
        is_noticed = any(waits) and not any(front.process.is_stopped for front in self.fronts)
        engine.n_noticed = engine.n_noticed + 1 if is_noticed and engine.is_stopped else 0
        if engine.fate == "stops while it loads" and engine.n_noticed > HUNG + 8:
            self.violate(f"engine {engine.pid} has stopped while it loads, and no front ends it")
        for front in self.fronts:
            is_kept = engine.is_stopped and front.is_ungreeted and not front.process.is_stopped
            front.n_kept = front.n_kept + 1 if is_kept else 0
            if front.n_kept > connector.PATIENCE + 8:
                self.violate(f"engine {engine.pid} has not greeted {front.name}, and is not ended")
        has_front = any(end.is_connected for end in engine.sockets)
        if has_front or engine.is_stopped:
            engine.busy_at = self.loop.time
        patience = LINGER if engine.left_at > 0 else FIRST_FRONT + 15.0
        if self.loop.time > engine.busy_at + patience + 7.0:
            self.violate(f"engine {engine.pid} has had no front for {self.loop.time - engine.busy_at:.1f} s")

    def note_end(self, engine: EngineProcess) -> None:
        """Looks at the end of a process that ends by itself."""
        if engine.fate != "cannot load" and self.loop.time < engine.left_at + LINGER - 0.01:
            self.violate(f"engine {engine.pid} ends {self.loop.time - engine.left_at:.2f} s after its last front")

    def check(self) -> None:
        """Looks at nothing at each moment; `_watch` does once a second."""

    def check_calm(self) -> None:
        n_open = len(self.ledger.open)
        engines = self.engines
        if len(engines) != 1:
            self.violate(f"{len(engines)} engines run at the end")
        for front in self.fronts:
            engine = front.engine
            if engine is None or engine.is_recovering:
                self.violate(f"{front.name} has no engine, though all is well")
            elif max(len(engine._ledger.jobs), len(engine._ledger.submissions), len(engine._questions)) > len(
                front.clients
            ):
                self.violate(f"{front.name} keeps {len(engine._ledger.jobs)} jobs of {len(front.clients)} clients")
        for process in engines:
            host, decoding = process.host, process.engine
            assert host is not None
            assert decoding is not None
            if len(host._sessions) != N_FRONTS:
                self.violate(f"the engine serves {len(host._sessions)} fronts, and there are {N_FRONTS}")
            if (n_jobs := sum(len(session._jobs) for session in host._sessions)) > n_open:
                self.violate(f"the engine's process keeps {n_jobs} jobs of {n_open}")
            known = [host.scales, *(front.engine._scales for front in self.fronts if front.engine is not None)]
            if any(scales != host.scales for scales in known):
                self.violate(f"fronts and their engine know different scales: {known}")
            if len({id(sequence.reader) for sequence in decoding.sequences}) > n_open:
                self.violate(f"{len(decoding.sequences)} tasks run for {n_open} jobs")

    def close(self) -> None:
        for front in self.fronts:
            self._tell_to_leave(front)
