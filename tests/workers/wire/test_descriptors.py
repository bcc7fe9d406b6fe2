"""Descriptors that travel with messages, between both kinds of channels over one socket pair."""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from corosrv.base.errors import BadFrame
from corosrv.contracts.jobs import setup
from corosrv.workers.wire import descriptors, messages
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.wire.thread_channel import ThreadChannel
from tests.support.descriptors import n_descriptors

TIMEOUT = 20.0  # seconds

pytestmark = pytest.mark.own_process

Server = GeventChannel[Any, Any]
Worker = ThreadChannel[Any, Any]


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    gevent.get_hub().threadpool.apply(int)  # its descriptors come with the first use
    before = n_descriptors()
    with gevent.Timeout(TIMEOUT):
        yield
    assert n_descriptors() <= before


def channels(takes_fds: bool = True) -> tuple[Server, Worker]:
    ours, theirs = _socket.socketpair()
    server: Server = GeventChannel(ours, StructCodec(messages.SlotToServer), takes_fds=takes_fds)
    worker: Worker = ThreadChannel.inherited(theirs.detach(), StructCodec(messages.SlotToWorker), takes_fds=takes_fds)
    return server, worker


@pytest.fixture
def pair() -> Iterator[tuple[Server, Worker]]:
    server, worker = channels()
    yield server, worker
    server.close()
    worker.close()


def in_thread(function: Any, *arguments: Any) -> Any:
    return gevent.get_hub().threadpool.apply(function, arguments)


def content(fd: int) -> bytes:
    """Of a memory file, which is closed."""
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def send(channel: Server | Worker, message: Any, *contents: bytes) -> None:
    fds = [descriptors.make([content]) for content in contents]
    channel.send(message, fds)
    descriptors.close_all(fds)  # the channel needs them no more


def test_they_cross_in_both_directions_with_their_message(pair: tuple[Server, Worker]) -> None:
    server, worker = pair

    send(server, messages.Predict("x", "/out"), b"input", b"another")
    send(worker, setup.Done("x", 0.5), b"output")

    assert in_thread(worker.receive) == messages.Predict("x", "/out")
    assert [content(fd) for fd in worker.take_fds()] == [b"input", b"another"]
    assert server.receive() == setup.Done("x", 0.5)
    assert [content(fd) for fd in server.take_fds()] == [b"output"]
    assert server.take_fds() == ()


@pytest.mark.parametrize("seed", range(5))
def test_each_message_has_its_own_whatever_its_size_and_whoever_waits(pair: tuple[Server, Worker], seed: int) -> None:
    server, worker = pair
    chance = random.Random(seed)
    sizes = [chance.choice([0, 0, 10, 5_000, 300_000, 2_000_000]) for _ in range(40)]
    numbers = [chance.choice([0, 0, 1, 3]) for _ in sizes]
    sent = [[b"%d.%d" % (at, fd) for fd in range(n)] for at, n in enumerate(numbers)]

    def receive(channel: Server | Worker) -> list[list[bytes]]:
        got = []
        for _ in sent:
            assert channel.receive() is not None
            got.append([content(fd) for fd in channel.take_fds()])
        return got

    def talk() -> None:
        for size, contents in zip(sizes, sent, strict=True):
            send(worker, setup.LogLine("stdout", "x" * size), *contents)

    talking = gevent.get_hub().threadpool.spawn(talk)
    assert receive(server) == sent
    talking.get(timeout=TIMEOUT)
    for size, contents in zip(sizes, sent, strict=True):  # more than the socket holds: much of it waits
        send(server, messages.Predict("x" * size, "/out"), *contents)
    assert in_thread(receive, worker) == sent


def test_those_that_nobody_takes_are_closed(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    for _ in range(3):
        send(worker, setup.Done("x", 0.5), b"never looked at")
        send(server, messages.Predict("x", "/out"), b"never looked at")

    for _ in range(2):
        server.receive()
        in_thread(worker.receive)
    server.close()
    worker.close()


def test_those_that_wait_to_be_sent_are_closed_with_the_channel(pair: tuple[Server, Worker]) -> None:
    server, _ = pair
    for _ in range(5):
        send(server, messages.Predict("x" * 1_000_000, "/out"), b"content")

    server.close()


def test_a_channel_that_takes_none_lets_them_go() -> None:
    server, worker = channels(takes_fds=False)

    send(worker, setup.Done("x", 0.5), b"unwanted")

    assert server.receive() == setup.Done("x", 0.5)
    assert server.take_fds() == ()
    server.close()
    worker.close()


def test_too_many_are_refused_and_nothing_is_sent(pair: tuple[Server, Worker]) -> None:
    server, worker = pair

    for channel, message in ((server, messages.Predict("x", "/out")), (worker, setup.Done("x", 0.5))):
        with pytest.raises(ValueError, match="201 descriptors"):
            channel.send(message, [0] * 201)
    worker.send(setup.Done("next", 0.5), [0] * 200)

    assert server.receive() == setup.Done("next", 0.5)
    assert len(server._fds) == 200


def test_a_peer_that_sends_more_breaks_the_channel(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    with socket.socket(fileno=os.dup(worker.fileno())) as raw:
        descriptors.send(raw, b"\0", [0] * 250)

    with pytest.raises(BadFrame, match="more descriptors"):
        server.receive()


@pytest.mark.parametrize(("n_refusals", "is_sealed"), [(0, True), (3, True), (1000, False)])
def test_a_file_whose_pages_the_kernel_moves_is_sealed_later(
    monkeypatch: pytest.MonkeyPatch, n_refusals: int, is_sealed: bool
) -> None:
    seal, refusals = fcntl.fcntl, [OSError(errno.EBUSY, "busy")] * n_refusals

    def refuse(*arguments: Any) -> int:
        if refusals:
            raise refusals.pop()
        return int(seal(*arguments))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    if not is_sealed:
        with pytest.raises(OSError, match="busy"):
            descriptors.make([b"value"])
        return
    fd = descriptors.make([b"value"])
    monkeypatch.undo()

    descriptors.check(fd, 5)
    os.close(fd)
