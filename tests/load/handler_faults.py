"""Calls of handlers, of which many go wrong in every way: `python -m tests.load.handler_faults [--count 100000]`.

Handlers crash, hang, fail and return nonsense, worker processes are killed and drained, clients leave, queues
overflow. Raises unless each call was answered exactly once, no handler that is not idempotent began a call twice, each
good answer is its own call's, all counts are back at zero, and no process or descriptor is left.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corosrv.base.errors import ManagementError
from corosrv.web.management.client import path_of, running_servers
from tests.serve.server import REPOSITORY, Server, Servers, servers
from tests.support.waiting import eventually

N_CLIENTS = 12
N_WORKERS = 3
PATIENCE = 60.0  # seconds that any answer may take

# What calls do, and how often.
DEEDS = {
    "echo": 40,
    "again": 12,
    "batch": 12,
    "nap": 12,
    "pieces": 6,
    "fail": 5,
    "garbage": 3,
    "hang": 3,
    "stuck": 0.01,  # with the killer's they stay below the five crashes a minute of a pool that loops
    "exit": 0.01,
    "kill": 0.01,
    "nobody": 1,
}
GOOD = {"echo", "again", "batch", "nap", "pieces"}
WAYS = {"wait": 12, "short deadline": 2, "leave": 2}
# Statuses that a call of an honest server may end with, whatever happens to its worker.
STATUSES = {200, 400, 404, 429, 500, 502, 503, 504}


@dataclass
class Tally:
    """The outcomes of all calls. Any thread."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    n_left: int = 0
    good: set[str] = field(default_factory=set)  # names of calls that were answered well
    faults: list[str] = field(default_factory=list)


class Client(threading.Thread):
    """Makes one call after the other, each with a name of its own."""

    def __init__(self, port: int, tally: Tally, count: int, name: str) -> None:
        super().__init__(name=name)
        self._port = port
        self._tally = tally
        self._count = count
        self._chance = random.Random(name)
        self._connection = self._connect()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)

    def run(self) -> None:
        try:
            for number in range(self._count):
                self._call(f"{self.name}-{number}")
        except Exception as error:
            self._tally.faults.append(f"{type(error).__name__}: {error}")
        finally:
            self._connection.close()

    def _call(self, name: str) -> None:
        (deed,) = self._chance.choices(list(DEEDS), list(DEEDS.values()))
        (way,) = self._chance.choices(list(WAYS), list(WAYS.values()))
        name = f"{deed}-{name}"
        tensor = {"name": "name", "datatype": "BYTES", "shape": [1], "data": [name]}
        headers = {"Content-Type": "application/json"}
        if deed == "stuck" or way == "short deadline":
            headers["X-Request-Timeout-Ms"] = str(self._chance.randrange(1, 200))
        path = f"/v2/models/{deed}/infer"
        self._connection.request("POST", path, json.dumps({"inputs": [tensor]}), headers)
        if way == "leave":
            time.sleep(self._chance.uniform(0, 0.02))
            self._connection.close()
            self._connection = self._connect()
            self._tally.n_left += 1
            return
        answer = self._connection.getresponse()
        body = json.loads(answer.read())
        if answer.will_close:
            self._connection.close()
            self._connection = self._connect()
        self._tally.answers[deed, answer.status] += 1
        if answer.status == 503:  # its workers are being replaced: others shall meet them, too
            time.sleep(self._chance.uniform(0.05, 0.2))
        self._check(name, deed, answer.status, body)

    def _check(self, name: str, deed: str, status: int, body: Any) -> None:
        assert status in STATUSES, f"{deed} was answered {status}: {body}"
        if status == 200:
            assert deed in GOOD or deed in ("hang", "kill"), f"{deed} was answered well: {body}"
            assert body["outputs"][0]["data"] == [name], f"{name} got somebody else's answer: {body}"
            self._tally.good.add(name)
        else:
            assert "secret words" not in body["error"]
        if deed == "nobody":
            assert status == 404, f"a model that is not there was answered {status}"


class Killer(threading.Thread):
    """Kills and drains worker processes at random until it is told to end."""

    def __init__(self, server: Server, run_dir: Path, seed: str) -> None:
        super().__init__(name="killer")
        self._front = server.worker
        ((self._operator, _),) = running_servers(str(run_dir))
        self._chance = random.Random(seed)
        self._is_over = threading.Event()
        self.n_killed = 0
        self.n_drained = 0

    def run(self) -> None:
        next_kill = time.monotonic()
        while not self._is_over.wait(self._chance.uniform(1.0, 4.0)):
            if time.monotonic() >= next_kill:
                next_kill = time.monotonic() + self._chance.uniform(10.0, 40.0)
                self._kill()
            else:
                self._drain()

    def _kill(self) -> None:
        if children := self._front.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(children), signal.SIGKILL)
                self.n_killed += 1

    def _drain(self) -> None:
        with contextlib.suppress(ManagementError):  # there is none of this name at the moment
            self._operator.call("POST", path_of("workers", f"default/{self._chance.randrange(N_WORKERS)}", "drain"))
            self.n_drained += 1

    def end(self) -> None:
        self._is_over.set()
        self.join()


def run(folder: Path, started: Servers, count: int, seed: str = "0") -> tuple[Tally, Killer]:
    """Returns what became of the calls, and who killed and drained processes.

    Raises AssertionError where anything is lost, doubled or left.
    """
    marks = folder / "marks"
    app = f"{REPOSITORY}/tests/apps/faulty.py:app"
    server = started.start(
        "corosrv", "serve", app, "--port", "0",
        model="", workers=N_WORKERS, hang_grace=0.5, run_dir=folder / "run", MARKS=str(marks),
    )  # fmt: skip
    eventually(lambda: n_ready(server) == N_WORKERS, PATIENCE, "all workers are ready")
    n_descriptors = server.worker.n_descriptors()
    tally, killer = Tally(), Killer(server, folder / "run", seed)
    clients = [Client(server.port, tally, count // N_CLIENTS, f"{seed}-{number}") for number in range(N_CLIENTS)]
    killer.start()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    killer.end()
    assert not tally.faults, tally.faults[:5]
    check_begun(marks, tally)
    check_nothing_is_left(server, n_descriptors)
    return tally, killer


def check_begun(marks: Path, tally: Tally) -> None:
    """No call began twice unless its handler allows that, and what was answered well had begun."""
    begun = Counter(marks.read_text().split())
    twice = {name for name, n in begun.items() if n > 1}
    assert tally.good <= begun.keys(), f"answered and never begun: {sorted(tally.good - begun.keys())[:5]}"
    assert all(n <= 2 for n in begun.values()), begun.most_common(3)
    assert all(name.startswith("again-") for name in twice), f"begun twice: {sorted(twice)[:5]}"


def n_ready(server: Server) -> int:
    """Returns how many of its workers take calls."""
    names = server.metrics()
    return sum(name.startswith("corosrv_worker_state") and 'state="ready"' in name for name in names)


def check_nothing_is_left(server: Server, n_descriptors: int) -> None:
    front = server.worker
    eventually(lambda: n_ready(server) == N_WORKERS, PATIENCE, "all workers are ready again")
    assert server.health() == "ok"
    samples = server.metrics()
    for metric in ("corosrv_queue_depth{", "corosrv_calls_in_flight{"):
        values = [value for name, value in samples.items() if name.startswith(metric)]
        assert values, f"there is no metric {metric}"
        assert sum(values) == 0, f"{metric} is {values}"
    eventually(lambda: front.n_descriptors() <= n_descriptors + 8, PATIENCE, f"descriptors: {front.descriptors()}")
    children = front.children()
    server.signal(signal.SIGTERM)
    assert server.wait(PATIENCE) == 0
    for pid in children:
        assert not Path(f"/proc/{pid}").exists(), f"process {pid} is left"
    assert "Traceback" not in _own_lines(server.log), "an error of the server's own is in its log"


def _own_lines(log: str) -> str:
    """The log without what handlers raised, whose tracebacks are logged line by line with the worker's name."""
    return "\n".join(line for line in log.splitlines() if "handler" not in line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", default="0")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder), Path(folder)) as started:
        began = time.monotonic()
        tally, killer = run(Path(folder), started, arguments.count, arguments.seed)
    n_answers = sum(tally.answers.values())
    print(
        f"{n_answers} calls answered and {tally.n_left} left in {time.monotonic() - began:.0f} s, "
        f"{killer.n_killed} processes killed from outside and {killer.n_drained} drained; nothing lost, doubled or left"
    )
    for (deed, status), n in sorted(tally.answers.items()):
        print(f"  {deed:8} {status}: {n}")


if __name__ == "__main__":
    main()
