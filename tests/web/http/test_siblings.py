"""Connections that worker processes pass to each other, with what was read of them."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flask
import gevent
import pytest
from gunicorn.config import Config
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader

from corosrv.web.http import siblings
from corosrv.web.http.siblings import Siblings, head_of
from corosrv.web.http.terms import FROM_WORKER
from corosrv.web.keys import digest
from tests.support.waiting import wait_until

SERVER = 1  # stands for a parent process


@pytest.fixture
def folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="corosrv-")
    yield path
    shutil.rmtree(path)


Taken = tuple[Any, Any, Any, bytes, dict[str, str]]


class Processes:
    """Several processes of one server, all in this one."""

    def __init__(self, folder: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: dict[int, list[Taken]] = {number: [] for number in range(n)}
        self.of: list[Siblings] = []
        self.paths: list[str] = []
        self.killed = 0  # the number of a process that did not close its socket
        for number in range(n):
            monkeypatch.setattr(os, "getpid", lambda number=number: 1000 + number)
            self.of.append(Siblings(folder, n, self._take(number), server=SERVER))
            self.paths.append(str(Path(folder) / f"{SERVER}-{number}-0-{1000 + number}.front"))
        monkeypatch.undo()
        monkeypatch.setattr(siblings.FrontSocket, "is_alive", lambda one: one.pid != self.killed)
        for one in self.of:
            one.start()

    def _take(self, number: int) -> Callable[[Any, Any, Any, bytes, dict[str, str]], None]:
        return lambda *taken: self.taken[number].append(taken)

    def close(self) -> None:
        for one in self.of:
            one.close()
        for all_taken in self.taken.values():
            for taken in all_taken:
                taken[0].close()


@pytest.fixture
def three(folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    processes = Processes(folder, 3, monkeypatch)
    yield processes
    processes.close()


def request(path: str = "/v1/responses", body: bytes = b"", method: str = "POST", **fields: str) -> Request:
    """A request whose head was read; its body, or the beginning of it, is in the reader's buffer."""
    lines = [f"{method} {path} HTTP/1.1", "Host: corosrv", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    data = "\r\n".join((*lines, "", "")).encode() + body
    return Request(Config(), IterUnreader([data]), ("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("asked", "needs_state"),
    [
        (request("/v1/chat/completions"), False),
        (request("/health", method="GET"), False),
        (request("/v1/models", method="GET"), False),
        (request("/responses-of-mine", method="GET"), False),
        (request("/v1/chat/completions", Idempotency_Key="a"), True),
        (request("/v1/chat/completions", X_Conversation_Id="a"), True),
        (request("/v1/chat/completions", X_Group_Id="a"), True),
        (request("/v1/responses"), True),
        (request("/llm/v1/responses/resp_1", method="GET"), True),
        (request("/llm/v1/conversations/conv_1/items", method="GET"), True),
        (request("/v1/groups/a", method="DELETE"), True),
        (request("/v1/stream?conv_id=a", method="GET"), True),
        (request("/v1/streams/lookup"), True),
    ],
    ids=lambda value: value.uri if isinstance(value, Request) else str(value),
)
def test_requests_that_need_state_have_one_owner(three: Processes, asked: Request, needs_state: bool) -> None:
    owners = {one.owner_of(asked) or path for one, path in zip(three.of, three.paths, strict=True)}

    assert len(owners) == (1 if needs_state else 3)


def test_a_key_with_limits_has_one_owner_whoever_passes_its_requests_on(three: Processes) -> None:
    caller = digest(b"key").hex()
    for one in three.of:
        one.limiting.append(lambda named: named == caller)
    by_key = request("/v1/completions", Authorization="Bearer key")
    by_peer = request("/v1/completions", X_Corosrv_Caller=caller, X_Corosrv_Token="token")

    owners = {
        one.owner_of(asked) or path
        for one, path in zip(three.of, three.paths, strict=True)
        for asked in (by_key, by_peer)
    }

    assert len(owners) == 1


def test_callers_are_one_where_no_server_of_the_process_asks_for_keys(three: Processes) -> None:
    callers = [request(), *(request(Authorization=f"Bearer key-{n}") for n in range(30))]

    def owners() -> set[str]:
        return {three.of[0].owner_of(caller) or three.paths[0] for caller in callers}

    three.of[0].knows_callers += [False, True]
    assert len(owners()) == 3
    three.of[0].knows_callers.remove(True)
    assert len(owners()) == 1


def test_callers_are_spread_and_stay_when_another_process_ends(three: Processes) -> None:
    callers = [request(Authorization=f"Bearer key-{n}") for n in range(300)]
    before = [three.of[0].owner_of(caller) or three.paths[0] for caller in callers]
    counts = Counter(before)
    assert len(counts) == 3
    assert min(counts.values()) > 60

    three.of[2].close()
    gevent.sleep(0.6)  # a look holds for half a second
    three.of[0]._n_processes = 2
    after = [three.of[0].owner_of(caller) or three.paths[0] for caller in callers]

    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {three.paths[2]}
    assert three.paths[2] not in after


def test_a_process_that_takes_a_dead_one_s_place_has_its_callers_and_no_others(folder: str, three: Processes) -> None:
    callers = [request(Authorization=f"Bearer key-{n}") for n in range(100)]
    before = [three.of[0].owner_of(caller) or three.paths[0] for caller in callers]
    three.killed = 1001  # whose socket's file stays
    third = Siblings(folder, 3, three._take(2), server=SERVER, front=4)
    third.start()
    three.of.append(third)
    path = str(Path(folder) / f"{SERVER}-1-4-{os.getpid()}.front")
    three.of[0]._known_until = 0.0

    after = [three.of[0].owner_of(caller) or three.paths[0] for caller in callers]

    assert after == [path if owner == three.paths[1] else owner for owner in before]
    assert path in after


def elsewhere(three: Processes, body: bytes = b"") -> tuple[Request, int]:
    """A request at the first process that belongs to another, and the number of that."""
    for n in range(100):
        asked = request(body=body, Authorization=f"Bearer key-{n}", X_Note="1, 2")
        if (owner := three.of[0].owner_of(asked)) is not None:
            return asked, three.paths.index(owner)
    raise AssertionError("all belong to the first")


def test_a_connection_is_passed_with_what_was_read(three: Processes) -> None:
    client, ours = socket.socketpair()
    asked, owner = elsewhere(three, b'{"input":')

    assert three.of[0].pass_on(three.paths[owner], asked, ours, ("127.0.0.1", 5), ("127.0.0.1", 80))  # type: ignore[arg-type]
    ours.close()
    wait_until(lambda: three.taken[owner])

    passed, address, listener, data, environ = three.taken[owner][0]
    assert (address, listener, environ) == (("127.0.0.1", 5), ("127.0.0.1", 80), {})
    again = Request(Config(), IterUnreader([data]), address)
    assert (again.method, again.uri, again.headers) == (asked.method, asked.uri, asked.headers)
    assert data == head_of(asked) + b'{"input":'
    client.sendall(b'"hi"}')
    assert passed.recv(100) == b'"hi"}'
    passed.sendall(b"answer")
    assert client.recv(100) == b"answer"
    client.close()


def test_what_does_not_fit_stays(three: Processes) -> None:
    client, ours = socket.socketpair()
    asked, owner = elsewhere(three, b"x" * 200_000)

    assert not three.of[0].pass_on(three.paths[owner], asked, ours, None, None)  # type: ignore[arg-type]
    client.close()
    ours.close()


def test_a_process_that_was_killed_is_passed_over(three: Processes) -> None:
    client, ours = socket.socketpair()
    asked, owner = elsewhere(three)
    three.of[0]._n_processes = 2  # that it waits for at the start
    dead = three.of[owner]
    dead._watcher.close()
    dead._watcher = None
    dead._socket.close()  # its file stays, as after a kill

    is_passed = three.of[0].pass_on(three.paths[owner], asked, ours, None, None)  # type: ignore[arg-type]

    gevent.sleep(0.1)
    assert is_passed == any(three.taken[number] for number in three.taken if number not in (0, owner))
    assert not Path(three.paths[owner]).exists()
    client.close()
    ours.close()


@pytest.mark.parametrize("garbage", [b"hello", b"", b"\x93\xc0\xc0\xa5hello"])
def test_what_is_no_connection_is_dropped(three: Processes, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(garbage, three.paths[1])
    client, ours = socket.socketpair()
    with client, ours:
        assert three.of[0].pass_on(three.paths[1], request(), ours, None, None)  # type: ignore[arg-type]
        wait_until(lambda: three.taken[1])  # what came before it has been read

        assert len(three.taken[1]) == 1


def test_a_closed_process_leaves_no_file(folder: str, three: Processes) -> None:
    three.close()
    three.close()

    assert list(Path(folder).iterdir()) == []


def asked_by_client(path: str = "/metrics", **fields: str) -> flask.Request:
    """A request as an application sees it."""
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    with flask.Flask("tests").test_request_context(path, headers=headers, environ_overrides={"RAW_URI": path}):
        return flask.request._get_current_object()  # type: ignore[attr-defined,no-any-return]


def answer_with(taken: Taken, body: bytes) -> bytes:
    """Answers what a process has been passed; returns its request."""
    connection, _, _, data, environ = taken
    assert (FROM_WORKER in environ) == (b"X-Corosrv-Worker" in data)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    return bytes(data)


def test_all_others_are_asked_what_a_client_has_asked(three: Processes) -> None:
    asked = gevent.spawn(three.of[0].ask_others, asked_by_client(Authorization="Bearer key", Expect="x"), b"{}")
    wait_until(lambda: three.taken[1] and three.taken[2])

    requests = {answer_with(three.taken[number][0], b"of %d" % number) for number in (1, 2)}

    assert sorted(answer[:2] for answer in asked.get(timeout=5)) == [(200, b"of 1"), (200, b"of 2")]
    (data,) = requests
    repeated = Request(Config(), IterUnreader([data]), ("127.0.0.1", 1))
    assert (repeated.method, repeated.uri, repeated.body.read()) == ("GET", "/metrics", b"{}")
    fields = dict(repeated.headers)
    assert fields["AUTHORIZATION"] == "Bearer key"
    assert "EXPECT" not in fields
    assert three.taken[0] == []


def test_a_process_sends_requests_of_its_own_to_the_one_that_has_the_caller_s_state(three: Processes) -> None:
    for caller in (f"caller {n}" for n in range(10)):
        connections = [one.connect(caller, {"corosrv.from_batch": caller}) for one in three.of]

        (owner,) = (number for number, connection in enumerate(connections) if connection is None)
        for connection in filter(None, connections):
            connection.request("POST", "/v1/responses", b"{}")
            wait_until(lambda owner=owner: three.taken[owner])
            taken = three.taken[owner].pop(0)
            taken[0].settimeout(10)
            assert taken[4] == {"corosrv.from_batch": caller}
            assert taken[0].recv(100).startswith(b"POST /v1/responses HTTP/1.1")
            answer_with(taken, b"done")
            assert connection.getresponse().read() == b"done"
            connection.close()
            taken[0].close()
    assert not any(three.taken.values())


def test_who_is_asked_by_another_process_asks_nobody(three: Processes) -> None:
    assert three.of[0].ask_others(asked_by_client(X_Corosrv_Worker="this")) == []


def test_a_process_that_is_dead_or_silent_is_left_out(three: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "_PATIENCE", 0.3)
    dead = three.of[1]
    dead._watcher.close()
    dead._watcher = None
    dead._socket.close()  # its file stays, as after a kill

    asked = gevent.spawn(three.of[0].ask_others, asked_by_client())

    assert asked.get(timeout=5) == []
    assert len(three.taken[2]) == 1
    assert not Path(three.paths[1]).exists()
