"""Both channels at once: the server's end and the worker's, over one socket pair."""

from __future__ import annotations

import _socket
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from corosrv.base.errors import BadFrame, ChannelClosed, FrameTooLarge
from corosrv.contracts.jobs import setup
from corosrv.workers.wire import messages
from corosrv.workers.wire.codec import Frames, StructCodec, framed
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.wire.thread_channel import ThreadChannel
from tests.support.descriptors import n_descriptors

TIMEOUT = 10.0  # seconds

DONE = framed(b'{"type":"done","id":"x","predict_time":0}')

Server = GeventChannel[Any, messages.SlotToServer]
Worker = ThreadChannel[Any, messages.SlotToWorker]


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    with gevent.Timeout(TIMEOUT):
        yield


@pytest.fixture
def pair() -> Iterator[tuple[Server, Worker]]:
    ours, theirs = _socket.socketpair()
    server: Server = GeventChannel(ours, StructCodec(messages.SlotToServer))
    worker: Worker = ThreadChannel.inherited(theirs.detach(), StructCodec(messages.SlotToWorker))
    yield server, worker
    server.close()
    worker.close()


@pytest.fixture
def raw() -> Iterator[tuple[Server, socket.socket]]:
    ours, theirs = _socket.socketpair()
    server: Server = GeventChannel(ours, StructCodec(messages.SlotToServer))
    with socket.socket(fileno=theirs.detach()) as end:
        yield server, end
    server.close()


def in_thread(function: Any, *arguments: Any) -> Any:
    return gevent.get_hub().threadpool.apply(function, arguments)


def test_messages_cross_in_both_directions(pair: tuple[Server, Worker]) -> None:
    server, worker = pair

    server.send(messages.Predict("x", "/out", {"a": [1, "ü"]}))
    worker.send(setup.Done("x", 0.5))

    assert in_thread(worker.receive) == messages.Predict("x", "/out", {"a": [1, "ü"]})
    assert server.receive() == setup.Done("x", 0.5)


def test_a_large_message_crosses_in_both_directions(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    text = "x" * (7 << 20)

    def echo() -> None:
        predict = worker.receive()
        assert predict is not None
        worker.send(setup.OutputChunk(predict.context["text"], 0))

    echoing = gevent.get_hub().threadpool.spawn(echo)
    server.send(messages.Predict("x", "/out", context={"text": text}))

    assert server.receive() == setup.OutputChunk(text, 0)
    echoing.get(timeout=TIMEOUT)


def test_sending_never_waits_and_keeps_the_order(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    sent = [messages.Predict(str(number), "x" * 100_000) for number in range(30)]  # more than a socket holds

    for message in sent:
        server.send(message)

    assert [in_thread(worker.receive) for _ in sent] == sent


def test_senders_in_many_threads_do_not_mix_their_messages(pair: tuple[Server, Worker]) -> None:
    server, worker = pair

    def talk(name: str) -> None:
        for _ in range(50):
            worker.send(setup.LogLine(name, name * 5000))

    threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    heard = [server.receive() for _ in range(200)]
    for thread in threads:
        thread.join(TIMEOUT)

    assert sorted(message.source for message in heard) == sorted("abcd" * 50)  # type: ignore[union-attr]
    assert all(message.data == message.source * 5000 for message in heard)  # type: ignore[union-attr]


def test_who_does_not_receive_stops_the_sender(raw: tuple[Server, socket.socket]) -> None:
    server, end = raw
    end.sendall(DONE)
    assert server.receive() is not None

    n_sent = fill(end)

    assert 0 < n_sent < 2 << 20
    assert server.receive() is not None
    assert fill(end) > 0


def fill(end: socket.socket) -> int:
    """Sends until nothing more is taken, also when the hub has had its turn; returns how many bytes that was."""
    end.setblocking(False)
    n_sent = n_before = 0
    while True:
        try:
            n_sent += end.send(DONE * 1000)
        except BlockingIOError:
            if n_sent == n_before:
                return n_sent
            n_before = n_sent
            gevent.idle()


def test_a_message_over_the_limit_is_not_sent_and_the_next_one_is(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    too_large = setup.LogLine("stdout", "x" * (8 << 20))

    with pytest.raises(FrameTooLarge):
        worker.send(too_large)
    with pytest.raises(FrameTooLarge):
        server.send(too_large)
    worker.send(setup.Done("x", 0))
    server.send(messages.Predict("x", "/out"))

    assert server.receive() == setup.Done("x", 0)
    assert in_thread(worker.receive) == messages.Predict("x", "/out")


def test_an_unknown_message_is_skipped(raw: tuple[Server, socket.socket]) -> None:
    server, end = raw

    end.sendall(framed(b'{"type":"weather"}') + DONE)

    assert server.receive() == setup.Done("x", 0)


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x05hello", b"\xff\xff\xff\xff", bytes(4)])
def test_garbage_is_a_bad_frame(raw: tuple[Server, socket.socket], data: bytes) -> None:
    server, end = raw

    end.sendall(data)

    with pytest.raises(BadFrame):
        server.receive()


def test_messages_before_garbage_are_received(raw: tuple[Server, socket.socket]) -> None:
    server, end = raw

    end.sendall(DONE)
    first = server.receive()
    end.sendall(b"\xff\xff\xff\xff")

    assert first == setup.Done("x", 0)
    with pytest.raises(BadFrame):
        server.receive()


def test_an_end_within_a_frame_is_a_bad_frame_on_both_sides(raw: tuple[Server, socket.socket]) -> None:
    server, end = raw
    ours, theirs = socket.socketpair()
    worker: Worker = ThreadChannel(ours, StructCodec(messages.SlotToWorker))

    for peer in (end, theirs):
        peer.sendall(b"\x00\x00\x00\x05he")
        peer.close()

    with pytest.raises(BadFrame, match="within a frame"):
        server.receive()
    with pytest.raises(BadFrame, match="within a frame"):
        worker.receive()
    worker.close()


def test_what_was_sent_before_the_end_is_received(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    worker.send(setup.Done("x", 0))
    worker.close()

    assert server.receive() == setup.Done("x", 0)
    assert server.receive() is None


def test_nothing_can_be_sent_to_nobody(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    worker.close()

    with pytest.raises(ChannelClosed):
        server.send(messages.Predict("x", "/out"))
    with pytest.raises(ChannelClosed):
        worker.send(setup.Done("x", 0))
    assert server.receive() is None


def test_a_peer_that_goes_while_a_message_is_under_way_ends_the_channel(raw: tuple[Server, socket.socket]) -> None:
    server, end = raw
    server.send(messages.Predict("x", "x" * 1_000_000))
    receiving = gevent.spawn(server.receive)
    gevent.idle()

    end.close()

    assert receiving.get(timeout=TIMEOUT) is None
    with pytest.raises(ChannelClosed):
        server.send(messages.Predict("x", "/out"))


def test_closing_wakes_who_receives(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(worker.receive()))
    thread.start()
    receiving = gevent.spawn(server.receive)
    gevent.idle()

    server.close()
    worker.close()
    server.close()
    worker.close()

    assert receiving.get(timeout=TIMEOUT) is None
    thread.join(TIMEOUT)
    assert results == [None]


def test_hanging_up_leaves_what_has_arrived(pair: tuple[Server, Worker]) -> None:
    server, worker = pair
    worker.send(setup.Done("x", 0))

    server.hang_up()

    assert server.receive() == setup.Done("x", 0)
    assert server.receive() is None
    with pytest.raises(ChannelClosed):
        worker.send(setup.Done("x", 0))


def test_a_message_follows_the_rest_of_the_one_before_it(raw: tuple[Server, socket.socket]) -> None:
    server, end = raw
    end.settimeout(TIMEOUT)
    server.send(messages.Predict("x", "x" * 1_000_000))
    arrived = end.recv(500_000)  # room for the next one, before the hub has noticed

    server.send(messages.Predict("y", "/out"))

    frames = Frames()
    whole = frames.feed(arrived)
    while len(whole) < 2:
        whole += frames.feed(in_thread(end.recv, 500_000))
    assert [b'"id":"x"' in whole[0], b'"id":"y"' in whole[1]] == [True, True]


def test_a_peer_that_reads_no_more_ends_the_channel(raw: tuple[Server, socket.socket]) -> None:
    server, end = raw
    receiving = gevent.spawn(server.receive)
    gevent.idle()
    end.shutdown(socket.SHUT_RD)

    with pytest.raises(ChannelClosed):
        server.send(messages.Predict("x", "/out"))

    assert receiving.get(timeout=TIMEOUT) is None


def test_a_closed_channel_gives_nothing_that_had_arrived(raw: tuple[Server, socket.socket]) -> None:
    server, end = raw
    end.sendall(DONE * 2)
    assert server.receive() is not None

    server.close()

    assert server.receive() is None


def test_nothing_follows_a_message_that_went_out_in_part() -> None:
    ours, theirs = socket.socketpair()
    worker: Worker = ThreadChannel(ours, StructCodec(messages.SlotToWorker))
    with theirs:
        ours.settimeout(0.01)  # in place of whatever else may interrupt it
        with pytest.raises(ChannelClosed):
            worker.send(setup.LogLine("stdout", "x" * 1_000_000))
        assert theirs.recv(1 << 20)

        with pytest.raises(ChannelClosed):
            worker.send(setup.Done("x", 0))
    worker.close()


def test_an_inherited_channel_is_not_passed_on() -> None:
    ours, theirs = socket.socketpair()
    ours.set_inheritable(True)

    worker: Worker = ThreadChannel.inherited(ours.detach(), StructCodec(messages.SlotToWorker))

    assert not os.get_inheritable(worker.fileno())
    worker.close()
    theirs.close()


@pytest.mark.own_process
def test_a_closed_channel_leaves_no_descriptor() -> None:
    before = n_descriptors()
    ours, theirs = _socket.socketpair()
    server: Server = GeventChannel(ours, StructCodec(messages.SlotToServer))
    worker: Worker = ThreadChannel.inherited(theirs.detach(), StructCodec(messages.SlotToWorker))

    server.close()
    worker.close()

    assert n_descriptors() <= before
