"""A front and engines on a real Ray cluster of two raylets: what clients notice while parts come, go and die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.fleet.ray.ray_nodes import START_SECONDS, RayNodes
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FILE = """
[fronts]
port = 0
cpus = 0.2

[[engines]]
name = "chat"
model = "synthetic:?tokens_per_s=200"
cpus = 0.2
concurrency = 4
settings = {{ slots = {slots} }}
"""
MORE = """
[[engines]]
name = "big"
model = "synthetic:"
gpus = 4
"""


class ServedCluster:
    """What runs on a cluster, as its operator and its clients see it."""

    def __init__(self, nodes: RayNodes) -> None:
        self.nodes = nodes
        self.pids: set[int] = set()  # of all processes that were seen

    def write(self, text: str) -> str:
        path = self.nodes.folder / "cluster.toml"
        path.write_text(text)
        return str(path)

    def up(self, text: str, *words: str) -> None:
        self.nodes.must("up", self.write(text), *words)

    def status(self) -> dict[str, Any]:
        status = self.nodes.status()
        self.pids |= {member[key] for member in status["members"] for key in ("pid", "actor_pid") if member[key]}
        return status

    def members(self, kind: str = "engine") -> list[dict[str, Any]]:
        return [one for one in self.status()["members"] if one["kind"] == kind]

    def until(self, look: Callable[[], Any], what: str) -> Any:
        return eventually(look, START_SECONDS, what)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServedCluster]:
    nodes = RayNodes(2, cpus=1)
    try:
        served = ServedCluster(nodes)
        path = served.write(FILE.format(slots=4))
        started = nodes.run("up", path)
        assert started.returncode == 0, started.stderr
        yield served
    finally:
        nodes.close()


class Caller(threading.Thread):
    """A client that chats without a pause, and keeps every answer that is none."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._is_over = threading.Event()
        self.n_answers = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                answer = chat(self._url)
            except urllib3.exceptions.HTTPError as error:
                self.failures.append(repr(error))
            else:
                self.n_answers += answer.status == 200
                self.failures += [f"{answer.status}: {answer.data!r}"] if answer.status != 200 else []

    def end(self) -> None:
        self._is_over.set()
        self.join(60)


def chat(url: str) -> urllib3.BaseHTTPResponse:
    body = {"model": "synthetic", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
    return urllib3.request("POST", f"{url}/v1/chat/completions", json=body, timeout=60, retries=False)


@contextmanager
def unbroken_calls(cluster: ServedCluster) -> Iterator[None]:
    """Fails if a call fails while the block runs, or if none is made."""
    caller = Caller(cluster.members("front")[0]["url"])
    caller.start()
    try:
        yield
        n_before = caller.n_answers
        cluster.until(lambda: caller.n_answers > n_before + 3 or caller.failures, "answers at the end")
    finally:
        caller.end()
    assert caller.failures == []


def has_ended(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_no_call_fails_while_engines_are_added_replaced_and_removed(cluster):
    version = cluster.members()[0]["version"]

    with unbroken_calls(cluster):
        cluster.nodes.must("scale", "chat", "2")
        assert len(cluster.members()) == 2
        cluster.up(FILE.format(slots=5))
        assert [one["version"] for one in cluster.members()] != [version]
        assert len(cluster.members()) == 1  # what the file says


def test_a_controller_that_is_killed_is_followed_by_one_that_knows_all(cluster):
    cluster.nodes.must("scale", "chat", "1..3")
    before = cluster.status()

    with unbroken_calls(cluster):
        os.kill(before["pid"], signal.SIGKILL)
        after = cluster.until(lambda: (now := cluster.status())["pid"] != before["pid"] and now, "another controller")

    cluster.until(lambda: cluster.status()["members"] == before["members"], "the same members")
    assert [group["max"] for group in after["groups"]] == [1, 3]


@pytest.mark.parametrize("part", ["pid", "actor_pid"])
def test_an_engine_that_is_killed_comes_back_and_is_called(cluster, part):
    engine = cluster.members()[0]

    os.kill(engine[part], signal.SIGKILL)

    again = cluster.until(lambda: [one for one in cluster.members() if _is_back(one, engine)], "the engine again")
    assert again[0]["id"] == engine["id"]
    assert has_ended(engine["pid"])
    assert len(list(cluster.nodes.temporary.glob("corosrv-ray-*"))) == len(cluster.status()["members"])
    assert chat(cluster.members("front")[0]["url"]).status == 200


def _is_back(one: dict[str, Any], before: dict[str, Any]) -> bool:
    return one["state"] == "ready" and one["pid"] != before["pid"]


def test_what_the_cluster_has_no_room_for_is_named_and_the_rest_serves(cluster):
    cluster.up(FILE.format(slots=5) + MORE, "--wait", "0")

    waiting = cluster.until(
        lambda: [one for one in cluster.members() if one["group"] == "big"], "the engine that waits"
    )
    assert waiting[0]["state"] == "unplaced"
    assert "wants 4 GPU, the cluster has 0" in waiting[0]["reason"]
    assert chat(cluster.members("front")[0]["url"]).status == 200


def test_a_second_up_talks_to_the_controller_that_there_is_and_down_leaves_nothing(cluster):
    pid = cluster.status()["pid"]
    cluster.up(FILE.format(slots=5))
    assert cluster.status()["pid"] == pid

    ended = cluster.nodes.run("down")

    assert ended.returncode == 0, ended.stderr
    assert "nothing runs on this cluster" in cluster.nodes.ask("status")[1]
    cluster.until(lambda: all(map(has_ended, cluster.pids | {pid})), "the end of all processes")
