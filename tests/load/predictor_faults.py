"""A thousand predictions, of which many go wrong in every way: `python -m tests.load.predictor_faults [--count N]`.

The server runs with --restart-worker. Raises unless each prediction ended once and told its receiver so, all permits
were accounted for after every step, and no process, descriptor or file is left.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.load.restless_app import MISCOUNTED
from tests.serve.server import GUNICORN, REPOSITORY, Process
from tests.serve.wire import Connection, request
from tests.support.predictors import ASYNC, PREDICTIONS, STREAM, PredictorServer, parse_events, serving_predictor
from tests.support.receiver import Receiver, receiving
from tests.support.waiting import eventually

APP = (*GUNICORN, "-b", "127.0.0.1:0", "tests.load.restless_app:application")
TERMINAL = {"succeeded", "failed", "canceled"}
N_CLIENTS = 8
PATIENCE = 60.0  # seconds that anything may take

# What predictions do, and how often.
DEEDS = {
    "echo": 30,
    "flood": 6,
    "huge": 2,
    "fail": 6,
    "file": 6,
    "missing file": 3,
    "hang": 12,
    "garbage": 2,
    "exit": 2,
    "kill": 1,
    "leave family": 1,
}
# How they are asked for, and how often; what hangs is canceled, or left.
WAYS = {"wait": 3, "poll": 3, "stream": 3, "leave": 2, "leave stream": 2, "cancel": 2}
LEAVE = {"leave", "leave stream", "cancel"}


@dataclass
class Tally:
    """The outcomes of all predictions. Any thread."""

    ends: Counter[str] = field(default_factory=Counter)
    refusals: Counter[int] = field(default_factory=Counter)
    ids: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def run(folder: Path, count: int, seed: int = 0) -> Tally:
    """Raises AssertionError where anything is lost, doubled or left."""
    settings = {"restart_worker": 1, "webhook_interval": 0.05, "result_ttl": 600, "drain_timeout": 5, "resume_s": 1}
    with (
        receiving() as receiver,
        serving_predictor(folder, "faulty.py:Predictor", command=APP, **settings) as server,
    ):
        front = server.process.worker
        warm_up(server)
        n_descriptors = front.n_descriptors()
        tally = Tally()
        clients = [Client(server, receiver, tally, count // N_CLIENTS, f"{seed}-{at}") for at in range(N_CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(PATIENCE * 10)
        assert not tally.faults, tally.faults
        check_ended(server, receiver, tally)
        check_nothing_is_left(server, front, n_descriptors)
    return tally


def warm_up(server: PredictorServer) -> None:
    """Descriptors that are opened once, and kept."""
    for do in ("echo", "huge", "file"):
        assert server.predict({"do": do}).json["status"] == "succeeded"


class Client(threading.Thread):
    """Asks for one prediction after the other, and sees each to its end."""

    def __init__(self, server: PredictorServer, receiver: Receiver, tally: Tally, count: int, name: str) -> None:
        super().__init__()
        self._server = server
        self._receiver = receiver
        self._tally = tally
        self._count = count
        self._name = name
        self._chance = random.Random(name)

    def run(self) -> None:
        try:
            for number in range(self._count):
                self._predict(f"{self._name}-{number}")
        except Exception as error:
            self._tally.faults.append(f"{type(error).__name__}: {error}")

    def _predict(self, id: str) -> None:
        (do,) = self._chance.choices(list(DEEDS), list(DEEDS.values()))
        (way,) = self._chance.choices(list(WAYS), list(WAYS.values()))
        if do == "hang" and way not in LEAVE:
            way = "cancel"
        body = {
            "input": {"do": do, "n": self._chance.randrange(1, 6)},
            "webhook": self._receiver.url,
            "webhook_events_filter": ["completed"],
        }
        deadline = time.monotonic() + PATIENCE
        while (status := self._ask(id, way, body)) not in (200, 202):
            assert status in (409, 503), f"{id} was answered {status}"
            assert time.monotonic() < deadline, f"{id} was never taken"
            self._tally.refusals[status] += 1
            time.sleep(self._chance.uniform(0, 0.05))
        self._tally.ids.append(id)
        end = self._server.wait_for_end(id, PATIENCE)
        self._tally.ends[end["status"]] += 1
        if do in ("echo", "flood", "huge", "file") and end["status"] == "succeeded":
            assert end["output"][0] == do, f"{id} is somebody else's: {end['output'][0]}"
            assert end["logs"].startswith(f"to {do}\n"), f"{id} has the logs {end['logs'][:50]!r}"

    def _ask(self, id: str, way: str, body: object) -> int:
        """The status of the answer, which is read or left."""
        headers = {"Content-Type": "application/json"}
        if way in ("stream", "leave stream"):
            headers |= STREAM
        if way in ("poll", "cancel"):
            headers |= ASYNC
        with self._server.connect(timeout=PATIENCE) as connection:
            connection.send(request("PUT", f"{PREDICTIONS}/{id}", body, headers))
            if way == "leave":
                return self._leave(id, connection)
            head = connection.head()
            if way == "leave stream" and head.status == 200:
                return head.status
            if way == "cancel" and head.status == 202:
                self._server.cancel(id)
            content = b"".join(connection.body(head))
        if way == "stream" and head.status == 200:
            events = parse_events(content)
            assert [event["event"] for event in events].count("completed") == 1
        elif way == "wait" and head.status == 200:
            assert json.loads(content)["status"] in TERMINAL
        return head.status

    def _leave(self, id: str, connection: Connection) -> int:
        """Goes away once it is known that it was taken, or as soon as it was refused."""
        deadline = time.monotonic() + PATIENCE
        while self._server.get(id).status != 200:
            if connection.has_input(0.01):
                return connection.answer().status
            assert time.monotonic() < deadline, f"{id} is neither taken nor refused"
        return 200


def check_ended(server: PredictorServer, receiver: Receiver, tally: Tally) -> None:
    """Each once: as it is shown, as it is counted, and as its receiver was told."""
    server.wait_idle()
    counted = server.process.metrics()
    n_warm = 3
    assert sum(tally.ends.values()) == len(tally.ids) == len(set(tally.ids))
    assert sum(counted[f'corosrv_predictions_total{{status="{end}"}}'] for end in TERMINAL) == len(tally.ids) + n_warm
    assert counted["corosrv_predictions_running"] == 0
    eventually(lambda: len(receiver.got) >= len(tally.ids), PATIENCE, "every receiver was told")
    told = Counter(got.body["id"] for got in receiver.got)
    assert told == Counter(tally.ids)
    shown = {id: server.get(id).json["status"] for id in tally.ids[-50:]}
    assert shown == {got.body["id"]: got.body["status"] for got in receiver.got if got.body["id"] in shown}


def check_nothing_is_left(server: PredictorServer, front: Process, n_descriptors: int) -> None:
    eventually(lambda: server.health()["status"] == "READY", PATIENCE, "a worker is there")
    # A worker that came back may have another number of slots poisoned, and so fewer channels, but never more.
    eventually(lambda: front.n_descriptors() <= n_descriptors + 2, PATIENCE, f"descriptors: {front.descriptors()}")
    (worker,) = front.children()
    assert processes_of(server.folder) >= {worker}
    assert list(server.folder.glob("corosrv-*/*")) == []
    assert server.predict({}).json["status"] == "succeeded"
    server.ask("POST", "/shutdown")
    assert server.process.wait(PATIENCE) == 0
    eventually(lambda: not processes_of(server.folder), 2, "no process is left")
    assert list(server.folder.glob("corosrv-*")) == []
    assert MISCOUNTED not in server.process.log
    # Those of the predictor's own errors are told; they begin in its file. Where a busy machine blocks the hub, the log
    # tells that too, with the lines of the code.
    tracebacks = "".join(re.findall(r"Traceback \(most recent call last\):\n(?: .*\n)+", server.process.log))
    assert f'File "{REPOSITORY / "corosrv"}/' not in tracebacks, tracebacks


def processes_of(folder: Path) -> set[int]:
    """Those that live and were started with this folder in their environment."""
    mark = f"TMPDIR={folder}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_ours = mark in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_ours and Process(int(entry.name)).is_alive:
                found.add(int(entry.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        tally = run(Path(folder), arguments.count, arguments.seed)
    print(f"{len(tally.ids)} predictions in {time.monotonic() - began:.1f} s: {dict(tally.ends)}")
    print(f"refused before they were taken: {dict(tally.refusals)}")
    print("each ended once; no permit, process, descriptor or file is left")


if __name__ == "__main__":
    main()
