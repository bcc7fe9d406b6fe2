"""An engine of the simulation, in a process of it: what it says is a function of the prompt, seed and ids so far.

It stands for the native decode loop, whose thread no simulation can run. It takes tasks as that does, resumes them
behind the ids that they bring, and tells of any that bring others than it had drawn. The rest of the process is real.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import msgspec
from gevent.event import Event

from corosrv.base.errors import ModelFailed, QueueFull
from corosrv.contracts.jobs import Adapter, Chunk, Finish
from corosrv.contracts.jobs.buffered import BufferedReader
from corosrv.contracts.jobs.worker import DecodeStats, Histogram
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine.binding import ModelInfo, Task
from corosrv.models.engine.process.connector import fault_path
from corosrv.models.engine.process.host import EngineHost
from corosrv.models.engine.tasks import Adapters
from corosrv.models.loadable import LoadProgress
from tests.simulation.unix import LocalProcess, Machine, UnixSocket

if TYPE_CHECKING:
    from tests.simulation.engines import EnginesWorld

PLAIN, WIDE, POISON = 1, 2, 3  # first tokens of prompts: what becomes of them
READER_BYTES = 64 << 10  # that a job may leave unread before its tasks pause
STEP = 0.1  # seconds, in the mean
INFO = ModelInfo(
    context=512, context_train=512, n_vocab=259, n_embd=1, vocab_type=1, add_bos=0, bos=256, eos=257, n_params=1,
    size=1, own_kernels=0, picks=0, packed_bytes=0, ftype="", description="", chat_template="", generates=1, n_vector=0,
    pooling="none", add_eos=0, add_sep=0, sep=-1, fim_prefix=-1, fim_suffix=-1, fim_middle=-1, fim_repository=-1,
    fim_file=-1, rerank_template="", sampling="", n_adapters=0, row_width=0, shared_cells=0,
)  # fmt: skip
_NOTHING = Histogram((0,), 0.0)


@dataclass(frozen=True, slots=True)
class Course:
    """All that an undisturbed engine says to one task: its tokens, the states behind them, and the text."""

    ids: tuple[int, ...]
    states: tuple[bytes, ...]
    text: bytes
    ends: tuple[int, ...]  # bytes of the text that are certain once each token is there
    finish: Finish


@functools.lru_cache(512)
def course(prompt: tuple[int, ...], seed: int, max_tokens: int) -> Course:
    """Computes what is said. Characters of two bytes are of two tokens, so that text comes later than its ids."""
    width = 16 << 10 if prompt[0] == WIDE else 1
    ids, states, ends = list[int](), list[bytes](), list[int]()
    text, unfinished = bytearray(), b""
    state = hashlib.blake2b(repr((prompt, seed)).encode(), digest_size=8).digest()
    finish = Finish.LENGTH
    while len(ids) < max_tokens:
        state = hashlib.blake2b(state, digest_size=8).digest()
        token = state[0]
        text += unfinished and b"\xc3\xa9"
        text += b"%c" % (97 + token % 26) * (1 + token % 3) * width
        unfinished = b"\xc3" if token % 4 == 0 else b""
        ids.append(token)
        states.append(state)
        ends.append(len(text))
        if token % 40 == 1:
            finish = Finish.STOP
            break
    return Course(tuple(ids), tuple(states), bytes(text), tuple(ends), finish)


class _Sequence:
    """A task that waits or runs."""

    def __init__(self, task: Task, place: int, reader: BufferedReader[Chunk]) -> None:
        self.place, self.reader = place, reader
        self.prompt = tuple(task.tokens)
        self.course = course(self.prompt, task.seed, task.max_tokens)
        self.n_ids = len(task.generated)
        self.n_sent = task.sent_bytes
        self.fault = self._fault_of(task)

    def _fault_of(self, task: Task) -> str:
        """Returns what is wrong with what a task brings from an earlier engine."""
        if tuple(task.generated) != self.course.ids[: self.n_ids]:
            return f"brings ids that no engine has drawn: {list(task.generated)}"
        if self.n_ids and task.state != self.course.states[self.n_ids - 1]:
            return f"brings the state of another token than its {self.n_ids}th"
        if not 0 <= task.sent_bytes <= self._n_certain():
            return f"says that {task.sent_bytes} bytes were sent, where {self.n_ids} tokens are {self._n_certain()}"
        return ""

    def _n_certain(self) -> int:
        return self.course.ends[self.n_ids - 1] if self.n_ids else 0

    @property
    def is_over(self) -> bool:
        return self.n_ids == len(self.course.ids)

    def advance(self, n_tokens: int, holds_back: bool) -> Chunk:
        """Draws so many tokens, or those that are left; `holds_back`: their text comes with later ones."""
        n_certain, first = self._n_certain(), self.n_ids
        self.n_ids = min(first + n_tokens, len(self.course.ids))
        if self.is_over or not holds_back:
            n_certain = self._n_certain()
        text, self.n_sent = self.course.text[self.n_sent : n_certain], n_certain
        ids = self.course.ids[first : self.n_ids]
        return Chunk(
            self.place,
            text.decode(),
            len(ids),
            self.course.finish if self.is_over else None,
            ids=b"".join(token.to_bytes(4, "little") for token in ids),
            state=self.course.states[self.n_ids - 1] if self.n_ids else b"",
        )


class StandInEngine:
    """Has of an Engine what its process uses."""

    def __init__(self, world: EnginesWorld, process: EngineProcess, settings: ModelSettings) -> None:
        self.settings = settings
        self.info = INFO
        self.is_hung = False
        self.sequences: list[_Sequence] = []  # in their order; the first ones run
        self._world, self._process = world, process
        self._is_open = False
        self.load_progress = LoadProgress()
        self._n_steps = 0
        self._news = Event()
        self._adapters = Adapters((("style.gguf", 1.0),))

    def open(self) -> None:
        self._world.sleep(0.5)
        if self._process.fate == "cannot load":
            raise ModelFailed("no room")
        self._is_open = True
        gevent.spawn(self._decode)

    def close(self) -> None:
        """Ends every job. Waits, as for the step in progress."""
        self._world.sleep(0.3)
        for sequence in list(self.sequences):
            self._cancel(sequence.reader)

    def run(self, tasks: Sequence[Task], caller: str, is_streamed: bool) -> BufferedReader[Chunk]:
        if len(self.sequences) + len(tasks) > self.settings.slots + self.settings.queue:
            raise QueueFull("too many tasks wait")
        reader = BufferedReader[Chunk](lambda: self._cancel(reader))
        for place, task in enumerate(tasks):
            sequence = _Sequence(task, place, reader)
            if sequence.fault:
                self._world.violate(f"a task of {list(task.tokens)} {sequence.fault}")
            began_with = self._world.scales_of.setdefault((sequence.prompt, task.seed), task.adapter_scales)
            if not task.generated:
                self._world.scales_of[sequence.prompt, task.seed] = task.adapter_scales
            elif task.adapter_scales != began_with:
                self._world.violate(f"a task began with scales of {began_with}, and goes on with {task.adapter_scales}")
            self.sequences.append(sequence)
        self._news.set()
        if tasks[0].tokens[0] == POISON and self._world.chance(0.3):
            self._process.crash(tuple(tasks[0].tokens))
            raise gevent.GreenletExit
        return reader

    def _cancel(self, reader: BufferedReader[Chunk]) -> None:
        """Ends what is unfinished of a job, at once."""
        unfinished = [sequence for sequence in self.sequences if sequence.reader is reader]
        self.sequences = [sequence for sequence in self.sequences if sequence.reader is not reader]
        for sequence in unfinished:
            reader.add_item(Chunk(sequence.place, "", 0, Finish.CANCELLED), 0)
        if unfinished:
            reader.finish()

    @property
    def _running(self) -> list[_Sequence]:
        return self.sequences[: self.settings.slots]

    def _decode(self) -> None:
        while True:
            if self.is_hung or not any(map(self._may_go_on, self._running)):
                self._news.wait(STEP)
                self._news.clear()
                continue
            self._world.sleep(STEP)
            if self.is_hung:
                continue
            self._n_steps += 1
            for sequence in self._running:
                if sequence in self.sequences and self._may_go_on(sequence):
                    self._advance(sequence)

    def _advance(self, sequence: _Sequence) -> None:
        if sequence.prompt[0] == POISON and self._world.chance(0.3):
            self._process.crash(sequence.prompt)
            raise gevent.GreenletExit
        chunk = sequence.advance(self._world.random.choice((0, 1, 1, 1, 3)), self._world.chance(0.3))
        if sequence.is_over:
            self.sequences.remove(sequence)
        if chunk.n_tokens or chunk.text or chunk.finish:
            sequence.reader.add_item(chunk, len(chunk.text))
        if not any(other.reader is sequence.reader for other in self.sequences):
            sequence.reader.finish()

    def _may_go_on(self, sequence: _Sequence) -> bool:
        return sequence.reader._n_bytes <= READER_BYTES

    def stats(self) -> DecodeStats | None:
        if not self._is_open:
            return None
        counters: dict[str, Any] = dict.fromkeys(DecodeStats.__struct_fields__, 0)
        n_running = len(self._running)
        counters |= {
            "steps": self._n_steps, "slots": self.settings.slots, "running": n_running,
            "waiting": len(self.sequences) - n_running,
            "paused": sum(not self._may_go_on(sequence) for sequence in self._running),
            "queue_wait": _NOTHING, "ttft": _NOTHING, "itl": _NOTHING,
        }  # fmt: skip
        return DecodeStats(**counters)

    def slots(self) -> tuple[()]:
        return ()

    def adapters(self) -> tuple[Adapter, ...]:
        return self._adapters.list()

    def set_adapters(self, scales: Mapping[int, float]) -> None:
        self._adapters.set(scales)


FATES = ("is well",) * 12 + (
    "is slow", "dies before it listens", "dies while it loads", "stops while it loads", "never greets",
    "cannot load",
)  # fmt: skip


class EngineProcess(LocalProcess):
    """A process with an engine: the real host over the stand-in."""

    def __init__(self, machine: Machine, pid: int, name: str) -> None:
        super().__init__(machine, pid, name)
        assert machine.world.name == "engines"
        self.world: Any = machine.world
        self.fate = self.world.draw_fate(FATES)
        self.engine: StandInEngine | None = None
        self.host: EngineHost | None = None
        self._faults = -1  # where it writes how it crashes
        self.busy_at = self.world.loop.time  # when it was seen to have a front, last
        self.n_noticed = 0  # looks at which it was stopped, and a front that it had greeted was not
        self.left_at = float("-inf")  # when it has closed a connection, last

    def forget(self, end: UnixSocket) -> None:
        super().forget(end)
        if end.backlog is None:
            self.left_at = self.world.loop.time

    def start(self, command: Sequence[str], inherited: Iterable[int]) -> None:
        """Starts as the command says, which a front has given it with descriptors."""
        parser = argparse.ArgumentParser()
        for name in ("socket", "lock", "settings"):
            parser.add_argument(f"--{name}", type=int)
        for name in ("digest", "folder"):
            parser.add_argument(f"--{name}")
        options, _ = parser.parse_known_args(command[command.index("--digest") :])  # how it logs is not looked at
        assert set(inherited) == {options.socket, options.lock, options.settings}
        options.lock, options.settings = os.dup(options.lock), os.dup(options.settings)
        self.fds += (options.lock, options.settings)
        listener = self.world.net.held(options.socket)
        assert isinstance(listener, UnixSocket)
        listener.inherit(self)
        self.run(self._serve, options, listener)

    def _serve(self, options: argparse.Namespace, listener: UnixSocket) -> None:
        """Does what the process's main does."""
        self.world.sleep(10.0 if self.fate == "is slow" else 0.3)
        faults = Path(fault_path(options.folder, options.digest, self.pid))
        self._faults = os.open(faults, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.fds.append(self._faults)
        if self.fate == "dies before it listens":
            self._end("dies")
            return
        if self.fate == "never greets":
            self.stop()
            gevent.sleep(0)  # for good
        with open(os.dup(options.settings), "rb") as file:
            file.seek(0)
            settings = msgspec.msgpack.decode(file.read(), type=ModelSettings)
        self.engine = StandInEngine(self.world, self, settings)
        if self.fate in ("dies while it loads", "stops while it loads"):
            self.run(self._meet_fate)
        engine: Any = self.engine
        socket: Any = listener
        self.host = EngineHost(engine, socket, options.digest, settings.names[0])
        self.host.run()
        faults.unlink(missing_ok=True)
        self.world.note_end(self)
        self._end("ends by itself")

    def _meet_fate(self) -> None:
        self.world.sleep(0.3)
        if self.fate == "dies while it loads":
            self._end("dies")
        else:
            self.world.note(f"engine {self.pid} stops for good")
            self.stop()

    def crash(self, prompt: tuple[int, ...]) -> None:
        """Dies of a prompt, and leaves its words behind."""
        self.world.note_crash(self, prompt)
        os.write(self._faults, b"Fatal Python error\n")
        self._end(f"crashes of {list(prompt)}")

    def _end(self, how: str) -> None:
        self.world.note(f"engine {self.pid} {how}")
        self.world.machine.end(self, loses_end=False)
