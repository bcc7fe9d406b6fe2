"""Streams over an engine that is killed and stopped: `python -m tests.load.engine_crashes [--seconds 600] [--jobs N]`.

Clients read greedy answers from several worker processes before one engine. Every few seconds the engine or a worker is
killed with SIGKILL, or stopped with SIGSTOP for a while. Whoever loses its connection, because its worker was killed or
because it has left by itself, comes back with its Idempotency-Key and Last-Event-ID. Raises unless each answer has one
end and the text that an undisturbed engine gives, and unless descriptors, threads and memory are at the end what they
were after the first minute.

`--tokens 40` kills the engine at each of the first 40 tokens of answers instead, of the packaged model unless a file is
named: greedy, sampled, formed, of tools, several, with log probabilities, with a stop string, in two dialects; each has
to be what it is without a death.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.load.engine_kills import kill_at_tokens
from tests.serve.server import APP, Process, Server, servers
from tests.serve.wire import CHAT, Connection, chat, request
from tests.support.waiting import eventually

MODEL = "synthetic:?tokens_per_s=100"
N_WORKERS = 3
N_CLIENTS = 64
N_PROMPTS = 6
LENGTHS = (8, 40, 120)  # tokens of answers
# What is kept of answers that have ended: so little that it is soon as much as it will ever be.
KEPT = {"resume_s": 30, "resume_kept_s": 10, "resume_bytes": 16 << 20, "idempotency_bytes": 4 << 20}
PATIENCE = 120.0  # seconds that an answer may take over all faults
PAUSE = 0.2  # seconds before a client asks again
LATER = {409, 429, 502, 503}  # it is asked again
GONE = {404, 410}  # what was said of it is forgotten: it is asked for from its beginning
# What may be more at the end than at the beginning, of a process that has lived all along.
MORE_DESCRIPTORS, MORE_THREADS, MORE_BYTES = 8, 4, 48 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, to which there is one answer."""

    prompt: int
    n_tokens: int

    def body(self) -> dict[str, Any]:
        fields = {"max_tokens": self.n_tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        return chat(f"Tell me story {self.prompt}.", **fields)


@dataclass
class Tally:
    """What came of all jobs. Any thread."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0  # seconds

    def count(self, what: str) -> None:
        with _lock:
            self.counts[what] += 1


_lock = threading.Lock()


class Broken(Exception):
    """Raised when a connection ends before its answer."""


class Answer:
    """One answer, put together from one or more connections."""

    def __init__(self, port: int, asked: Asked, name: str, caller: str, leaves: float = 0.0) -> None:
        """`leaves`: the probability that the client leaves at an event, to come back."""
        self._port = port
        self._asked = asked
        self._headers = {
            "Idempotency-Key": name,
            "Authorization": f"Bearer {caller}",
            "Content-Type": "application/json",
        }
        self._leaves = leaves
        self._last_id = ""
        self.text = ""
        self.finishes: list[str] = []
        self.n_breaks = self.n_leaves = self.n_restarts = 0
        self.course: list[str] = []  # how its connections went, for whoever looks into what is wrong

    def read(self, deadline: float) -> None:
        """Reads it to its end, over as many connections as it takes. Raises AssertionError."""
        while not self._read_once():
            assert time.monotonic() < deadline, f"no end after {len(self.text)} characters"
            time.sleep(PAUSE)

    def _read_once(self) -> bool:
        """Returns whether the answer has come to its end."""
        headers = self._headers | ({"Last-Event-ID": self._last_id} if self._last_id else {})
        try:
            connection = Connection(self._port)
        except OSError:
            return False
        try:
            connection.send(request("POST", CHAT, self._asked.body(), headers))
            return self._read_events(connection)
        except (OSError, Broken) as error:
            self.course.append(f"broken at {self._last_id}: {error}")
            self.n_breaks += 1
            return False
        finally:
            connection.socket.close()

    def _read_events(self, connection: Connection) -> bool:
        try:
            head = connection.head()
        except (AssertionError, IndexError):
            raise Broken("no answer") from None
        self.course.append(f"answered {head.status} behind {self._last_id or 'nothing'}")
        if head.status in GONE:
            self.n_restarts += 1
            self.text, self._last_id, self.finishes = "", "", []
        if head.status in GONE | LATER:
            return False
        assert head.status == 200, f"it was answered {head.status}: {b''.join(connection.body(head))[:300]!r}"
        for event in _events(connection, head):
            if self._take(event):
                return True
            if self._leaves and random.random() < self._leaves:
                self.n_leaves += 1
                self.course.append(f"left at {self._last_id}")
                return False
        raise Broken("an end that is none")

    def _take(self, event: str) -> bool:
        """Takes one event; returns whether it was the last one."""
        fields = dict(line.split(": ", 1) for line in event.splitlines() if not line.startswith(":") and ": " in line)
        self._last_id = fields.get("id", self._last_id)
        data = fields.get("data", "")
        if data == "[DONE]":
            return True
        if data:
            value = json.loads(data)
            assert "error" not in value, f"it ends with {value['error']}"
            for choice in value["choices"]:
                assert not self.finishes, "text or an end comes after its end"
                self.text += choice["delta"].get("content") or ""
                self.finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
        return False


def _events(connection: Connection, head: Any) -> Iterator[str]:
    """Yields whole events. Raises Broken at an end that is none."""
    unfinished = b""
    try:
        for piece in connection.body(head):
            *events, unfinished = (unfinished + piece).split(b"\n\n")
            yield from (event.decode() for event in events)
    except ValueError:  # no length of another chunk
        raise Broken("no end") from None


class Client(threading.Thread):
    """Asks one question after the other until it is told to end."""

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(name=f"{load.name}-{number}")
        self._load = load
        self._chance = random.Random(number)

    def run(self) -> None:
        for number in itertools.count():
            if self._load.is_over.is_set():
                return
            name = f"{self.name}-{number}"
            try:
                self._ask(name)
            except Exception as error:
                with _lock:
                    self._load.tally.wrong.append(f"{name}: {type(error).__name__}: {error}")

    def _ask(self, name: str) -> None:
        load, tally = self._load, self._load.tally
        asked = self._chance.choice(list(load.texts))
        answer = Answer(load.port, asked, name, self.name, 0.02 if self._chance.random() < 0.2 else 0.0)
        began = time.monotonic()
        answer.read(began + PATIENCE)
        assert answer.finishes == ["length"], f"it was finished by {answer.finishes}"
        right = load.texts[asked]
        if answer.text != right:
            at = next(at for at, pair in enumerate(itertools.zip_longest(answer.text, right)) if len(set(pair)) > 1)
            raise AssertionError(
                f"the text of {asked} is wrong from {at} of {len(right)} on: {answer.text[at : at + 20]!r} in place of "
                f"{right[at : at + 20]!r}; {answer.course}"
            )
        for what, n_times in (("broken", answer.n_breaks), ("left", answer.n_leaves), ("restarted", answer.n_restarts)):
            if n_times:
                tally.count(f"whole, and {what} on the way")
        tally.count("whole")
        tally.slowest = max(tally.slowest, time.monotonic() - began)
        load.note_job()


class Load:
    """Owns the clients of a run, and hurts the server meanwhile."""

    def __init__(self, server: Server, name: str, max_jobs: int = 0, seed: int = 0) -> None:
        self.server = server
        self.name = name
        self.port = server.port
        self.tally = Tally()
        self.is_over = threading.Event()
        self.texts: dict[Asked, str] = {}
        self._chance = random.Random(seed)
        self._max_jobs = max_jobs

    def learn(self) -> None:
        """Asks for each answer once while all is well."""
        for prompt, n_tokens in itertools.product(range(N_PROMPTS), LENGTHS):
            asked = Asked(prompt, n_tokens)
            answer = Answer(self.port, asked, f"learnt-{prompt}-{n_tokens}", "learner")
            answer.read(time.monotonic() + PATIENCE)
            self.texts[asked] = answer.text

    def note_job(self) -> None:
        if self._max_jobs and self.tally.counts["whole"] >= self._max_jobs:
            self.is_over.set()

    def run(self, seconds: float, turn: float) -> None:
        """Puts the load on the server for a while, with a fault in each turn of so many seconds. Waits."""
        clients = [Client(self, number) for number in range(N_CLIENTS)]
        for client in clients:
            client.start()
        ends_at = time.monotonic() + seconds
        try:
            while not self.is_over.is_set() and time.monotonic() < ends_at:
                self._hurt()
                self.is_over.wait(turn * self._chance.uniform(0.5, 1.5))
        finally:
            self.is_over.set()
            for client in clients:
                client.join(PATIENCE + 10)
        assert not any(client.is_alive() for client in clients), "a job has no end"
        assert not self.tally.wrong, "\n".join(self.tally.wrong[:20])

    def _hurt(self) -> None:
        # One worker is left alone: what it holds is compared at the end.
        _, *others = self.server.workers()
        is_engine = self._chance.random() < 0.7
        pid = self.server.engine.pid if is_engine or not others else self._chance.choice(others)
        kind = "killed" if self._chance.random() < 0.7 else "stopped"
        self.tally.faults[f"{'engine' if is_engine else 'worker'} {kind}"] += 1
        with suppress(ProcessLookupError):
            if kind == "killed":
                os.kill(pid, signal.SIGKILL)
                return
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._chance.uniform(0.2, 2.0))
            os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds: counts, and bytes of memory."""

    descriptors: int
    threads: int
    memory: int

    @classmethod
    def of(cls, process: Process) -> Held:
        return cls(process.n_descriptors(), process.n_threads(), process.resident_bytes())

    def __str__(self) -> str:
        return f"{self.descriptors} descriptors, {self.threads} threads, {self.memory / 2**20:.0f} MiB"

    def check(self, later: Held, name: str) -> None:
        """Raises AssertionError where it has become more."""
        is_flat = (
            later.descriptors <= self.descriptors + MORE_DESCRIPTORS
            and later.threads <= self.threads + MORE_THREADS
            and later.memory <= self.memory + MORE_BYTES
        )
        assert is_flat, f"{name} had {self}, and has {later}"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run, and what the first worker and the engine held at its beginning and at its end."""

    tally: Tally
    n_engines: int
    held: dict[str, tuple[Held, Held]]


def hold_load(
    folder: Path, seconds: float, jobs: int = 0, turn: float = 5.0, seed: int = 1, model: str = MODEL
) -> Result:
    """Runs a server under the load. Raises AssertionError, which names the jobs that went wrong."""
    run_dir = tempfile.mkdtemp(prefix="corosrv-")  # a short path: that of a socket must fit
    settings = {"slots": 32, "queue": 200, "ctx": 512, "deterministic": 1} | KEPT
    try:
        with servers(folder, folder) as started:
            server = started.start(*APP, "-w", str(N_WORKERS), run_dir=run_dir, model=model, **settings)
            eventually(lambda: server.log.count(": loaded") == N_WORKERS, 60, "all workers")
            return _hold(server, Path(run_dir), seconds, jobs, turn, seed)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def _hold(server: Server, run_dir: Path, seconds: float, jobs: int, turn: float, seed: int) -> Result:
    load = Load(server, "client", jobs, seed)
    load.learn()
    _warm(server, seconds, load.texts)
    before = _held(server)
    load.run(seconds, turn)
    server.wait_idle()
    after = _held(server)
    for name, held in before.items():
        held.check(after[name], name)
    faults = list(run_dir.glob("*.fault"))
    assert len(faults) <= 1, f"files of engines that have ended are left: {faults}"
    n_engines = len(re.findall(r"its engine is process", server.log))
    return Result(load.tally, n_engines, {name: (held, after[name]) for name, held in before.items()})


def _warm(server: Server, seconds: float, texts: dict[Asked, str]) -> None:
    """Lets all clients ask while all is well, until what is kept of them is there."""
    warm = Load(server, "early")
    warm.texts = texts
    warm._hurt = lambda: None  # type: ignore[method-assign]
    warm.run(min(60.0, seconds / 10), 1.0)
    server.wait_idle()


def _held(server: Server) -> dict[str, Held]:
    return {"the first worker": Held.of(Process(server.workers()[0])), "the engine": Held.of(server.engine)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--jobs", type=int, default=0, help="ends after so many, if that is sooner")
    parser.add_argument("--turn", type=float, default=5.0, help="seconds from one fault to the next, in the mean")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=MODEL, help="a file, or a synthetic model")
    parser.add_argument("--tokens", type=int, default=0, help="kill it at each of so many tokens, and print a table")
    parser.add_argument("--each", type=int, default=1, help="of these tokens, take the first of each so many")
    options = parser.parse_args()
    if options.tokens:
        kill_at_tokens(range(1, options.tokens + 1, options.each), "" if options.model == MODEL else options.model)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = hold_load(
            Path(folder), options.seconds, options.jobs, options.turn, options.seed, options.model
        )  # fmt: skip
    print(f"{result.tally.counts['whole']} jobs, each with one end and the text of an undisturbed engine")
    for what, n in sorted(result.tally.counts.items()):
        print(f"  {what:32} {n}")
    print(f"faults: {dict(result.tally.faults)}; {result.n_engines} engines; slowest {result.tally.slowest:.1f} s")
    for name, (before, after) in result.held.items():
        print(f"{name}: {before}; at the end {after}")


if __name__ == "__main__":
    main()
