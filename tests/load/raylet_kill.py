"""A Ray cluster that loses a node with two of four engines under load: `python -m tests.load.raylet_kill`.

Three raylets run on this machine, and 64 clients stream all the time. Raises unless each stream ends once, whole or
with an error event, only as many with an error as the lost engines ran, and two other engines are called in the end.
Prints how long that took. `--setting health_check_period_ms=1000` is one of Ray's, and may be repeated.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fleet.ray.ray_nodes import START_SECONDS, RayNodes
from tests.load.upstream_faults import stream_is_good
from tests.load.upstream_servers import chat, machine_load
from tests.support.waiting import eventually

N_CLIENTS = 64
N_TOKENS = 60
PATIENCE = 60.0  # seconds that any answer may take
QUIET = 8.0  # seconds before the node is killed, and after all is well again
WHOLE, LOST = "whole", "ended in an error event"
FILE = """
[fronts]
port = 0
cpus = 2

[[engines]]
name = "chat"
model = "synthetic:?tokens_per_s=20"
replicas = 4
cpus = 1
concurrency = 16
settings = { slots = 16 }
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream that has ended. Times are of time.monotonic()."""

    began: float
    ended: float
    outcome: str


class Client(threading.Thread):
    """Streams one answer after the other until it is told to end."""

    def __init__(self, address: tuple[str, int], ended: list[Ended], is_over: threading.Event) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
        self._ended = ended
        self._is_over = is_over

    def run(self) -> None:
        body = chat("Tell me.", N_TOKENS, model="synthetic", stream=True, stream_options={"include_usage": True})
        while not self._is_over.is_set():
            began = time.monotonic()
            try:
                self._connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                answer = self._connection.getresponse()
                outcome = _outcome(answer.status, answer.read())
            except Exception as error:
                outcome = f"wrong: {type(error).__name__}: {error}"
                self._connection.close()
            self._ended.append(Ended(began, time.monotonic(), outcome))
        self._connection.close()


def _outcome(status: int, body: bytes) -> str:
    if status != 200:
        return f"refused with {status}: {json.loads(body)['error']['message']}"
    return WHOLE if stream_is_good(body, N_TOKENS) else LOST


def raylet_of(member: dict[str, Any]) -> int:
    """Returns the process that has started a member's actor."""
    return int(Path(f"/proc/{member['actor_pid']}/stat").read_text().rpartition(")")[2].split()[1])


def engines_of(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in status["members"] if one["kind"] == "engine" and one["state"] == "ready"]


def node_to_kill(status: dict[str, Any], head: int) -> int:
    """Returns the raylet of two engines alone, which is not the head's. Raises AssertionError where there is none."""
    placed = Counter(map(raylet_of, engines_of(status)))
    others = {raylet_of(one) for one in status["members"] if one["kind"] == "front"} | {head}
    found = [raylet for raylet, n in placed.items() if n == 2 and raylet not in others]
    assert found, f"no node but the front's and the head's has two engines: {placed}"
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", action="append", default=[], help="of Ray: NAME=VALUE; may be repeated")
    settings = dict(word.split("=", 1) for word in parser.parse_args().setting)
    print(machine_load())
    nodes = RayNodes(3, cpus=4, **settings)
    try:
        (nodes.folder / "cluster.toml").write_text(FILE)
        nodes.must("up", str(nodes.folder / "cluster.toml"))
        _kill_under_load(nodes)
    finally:
        nodes.close()
    print(machine_load())


def _kill_under_load(nodes: RayNodes) -> None:
    before = nodes.status()
    (front,) = (one for one in before["members"] if one["kind"] == "front")
    host, _, port = front["url"].rpartition("/")[2].partition(":")
    raylet = node_to_kill(before, nodes.head_raylet)
    lost = {one["url"] for one in engines_of(before) if raylet_of(one) == raylet}
    ended: list[Ended] = []
    is_over = threading.Event()
    clients = [Client((host, int(port)), ended, is_over) for _ in range(N_CLIENTS)]
    for client in clients:
        client.start()
    try:
        time.sleep(QUIET)
        killed = time.monotonic()
        os.kill(raylet, signal.SIGKILL)
        eventually(lambda: _are_back(nodes.status(), lost), START_SECONDS, "four engines")
        back = time.monotonic()
        time.sleep(QUIET)
    finally:
        is_over.set()
        for client in clients:
            client.join(PATIENCE + 10)
    assert not any(client.is_alive() for client in clients), "a stream has never ended"
    _report(ended, killed, back)


def _are_back(status: dict[str, Any], lost: set[str]) -> bool:
    urls = {one["url"] for one in engines_of(status)}
    return len(urls) == 4 and not urls & lost


def _report(ended: list[Ended], killed: float, back: float) -> None:
    lost = sorted(one.ended for one in ended if one.outcome == LOST)
    print(f"{len(lost)} streams of {len(ended)} ended in an error event, ", end="")
    print(f"{lost[0] - killed:.1f} to {lost[-1] - killed:.1f} s after the kill" if lost else "none was lost")
    print(f"all four engines were called again {back - killed:.1f} s after the kill")
    slowest = max(one.ended - one.began for one in ended if one.began >= killed)
    print(f"streams took {min(one.ended - one.began for one in ended):.1f} s, the slowest begun later {slowest:.1f} s")
    wrong = [one.outcome for one in ended if one.outcome not in (WHOLE, LOST)]
    assert not wrong, wrong[:20]
    assert len(lost) <= N_CLIENTS // 2, "streams of the other engines were lost"


if __name__ == "__main__":
    main()
