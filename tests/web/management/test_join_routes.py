"""Requests to join that are refused, and what becomes of the connection of one that is not."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from corosrv.web.management import worker_routes
from corosrv.web.management.client import ManagementClient, UnixConnection
from corosrv.web.management.listener import CONNECTIONS, ManagementListener, ManagementSettings
from corosrv.workers.manager.joined import Joining
from tests.support.waiting import wait_until
from tests.web.management.serving import in_thread, short_folder
from tests.workers.manager.scripted import TIMEOUT, Script, ScriptedWorker, managed, pool_card

UPGRADE = {"Connection": "Upgrade", "Upgrade": "corosrv-worker/1"}


TOKEN = "a token of sixteen characters or more"


@dataclass
class Door:
    """A management API that workers can join, and what has joined."""

    listener: ManagementListener
    joined: list[tuple[Joining, Any, int]] = field(default_factory=list)

    def ask(self, target: str, headers: dict[str, str], body: bytes | None = None, port: int = 0) -> tuple[int, str]:
        """Returns the status and the error of a request to join."""

        def send() -> tuple[int, str]:
            path = self.listener.path
            connection = http.client.HTTPConnection("127.0.0.1", port) if port else UnixConnection(path)
            try:
                connection.request("POST", target, body, headers)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())["error"]
            finally:
                connection.close()

        return in_thread(send)


@contextmanager
def opened() -> Iterator[Door]:
    with ExitStack() as stack:
        manager, script = stack.enter_context(managed(pool_card(), has_app=False))
        script = Script([pool_card("joined")], starts=False)
        door: Door

        def make(joining: Joining, place: str, number: int, connection: Any, pid: int) -> ScriptedWorker:
            stack.callback(connection.close)
            door.joined.append((joining, connection, pid))
            return script.make("joined", place, number)

        api = worker_routes.join_blueprint(manager.joined, make)
        folder = stack.enter_context(short_folder())
        token = Path(folder, "token")
        token.write_text(TOKEN)
        settings = ManagementSettings(run_dir=folder, port=0, token_file=str(token))
        listener = ManagementListener(settings, lambda: manager.state, [api])
        door = Door(listener)
        listener.start()
        stack.callback(listener.close)
        yield door


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with opened() as door:
        yield door


@pytest.mark.parametrize(
    ("query", "headers", "body", "status", "words"),
    [
        ("app=a:b", {}, None, 400, "must have the headers Connection: Upgrade and Upgrade: corosrv-worker/1"),
        ("app=a:b", UPGRADE | {"Upgrade": "h2c"}, None, 400, "speaks corosrv-worker/1 here, and not 'h2c'"),
        ("app=a:b&pid=1", UPGRADE, None, 400, "'pid' is unknown"),
        ("app=a:b", UPGRADE, b"{}", 400, "no body"),
        ("", UPGRADE, None, 400, "app must be the application"),
        ("app=", UPGRADE, None, 400, "app must be the application"),
        ("app=a:b&app=c:d", UPGRADE, None, 400, "'app' is unknown, or there twice"),
        ("app=a:b&address=unix:/x", UPGRADE, None, 400, "'address' is unknown"),
        ("app=a:b&factory=yes", UPGRADE, None, 400, "factory must be 0 or 1"),
        ("app=" + "a" * 5000, UPGRADE, None, 400, "app has more than 4096 characters"),
    ],
)
def test_what_is_no_request_to_join_is_refused(door, query, headers, body, status, words):
    answer = door.ask(f"/v1/workers/join?{query}", headers, body)

    assert answer[0] == status
    assert words in answer[1]
    assert door.joined == []


def test_nobody_joins_over_tcp_without_the_token_or_in_the_protocol_of_the_socket(door: Door):
    target, port = "/v1/workers/join?app=a:b", door.listener.port

    assert door.ask(target, UPGRADE | {"Upgrade": "corosrv-lanes/1"}, port=port)[0] == 401
    status, error = door.ask(target, UPGRADE | {"Authorization": f"Bearer {TOKEN}"}, port=port)
    assert (status, error) == (
        400,
        "this server speaks corosrv-lanes/1 here, and not 'corosrv-worker/1': use one version of corosrv on both sides",
    )
    assert door.joined == []


def test_the_connection_of_a_worker_that_joins_becomes_its_own():
    with opened() as door, socket.socket(socket.AF_UNIX) as worker:
        asked = "app=a.py:app&app_dir=/x&factory=1&pool=P"
        head = f"POST /v1/workers/join?{asked} HTTP/1.1\r\nHost: localhost\r\n"
        head += "Connection: Upgrade\r\nUpgrade: corosrv-worker/1\r\n\r\n"

        def join() -> bytes:
            worker.settimeout(TIMEOUT)
            worker.connect(door.listener.path)
            # What a worker says at once is behind the head of its request, and none of it may be lost.
            worker.sendall(head.encode())
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += worker.recv(1)
            worker.sendall(b"from the worker")
            return answer

        answer = in_thread(join)

        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"X-Corosrv-Worker: joined/0\r\n" in answer
        assert b"Content-Length" not in answer
        ((joining, connection, pid),) = door.joined
        assert joining == Joining(app_ref="a.py:app", app_dir="/x", is_factory=True, pool="P")
        assert pid == os.getpid()
        connection.setblocking(False)
        assert received(connection, 15) == b"from the worker"
        connection.sendall(b"from the server")
        assert in_thread(worker.recv, 15) == b"from the server"


def received(connection: Any, n_bytes: int) -> bytes:
    """Returns what comes over a socket of the system's own, while this thread's hub turns."""
    data = b""

    def look() -> bool:
        nonlocal data
        try:
            data += connection.recv(n_bytes - len(data))
        except BlockingIOError:
            return False
        return len(data) == n_bytes

    wait_until(look)
    return data


def test_workers_that_have_joined_take_no_connection_of_the_api():
    head = b"POST /v1/workers/join?app=a:b HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: corosrv-worker/1\r\n\r\n"
    with opened() as door, ExitStack() as stack:
        workers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(CONNECTIONS + 1)]

        def join(worker: socket.socket) -> bytes:
            worker.settimeout(TIMEOUT)
            worker.connect(door.listener.path)
            worker.sendall(head)
            return worker.recv(12)

        assert [in_thread(join, worker) for worker in workers] == [b"HTTP/1.1 101"] * len(workers)
        assert in_thread(ManagementClient(door.listener.path).call, "GET", "/v1/server")["state"] == "ready"
        worker, (_, connection, _) = workers[0], door.joined[0]
        worker.sendall(b"still here")
        connection.setblocking(False)
        assert received(connection, 10) == b"still here"
