"""The sending side of a channel: in order, whole, and never for ever."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from corosrv.base.errors import FrameTooLarge
from corosrv.contracts.jobs.setup import LogLine
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import MAX_FRAME, Frames, StructCodec
from corosrv.workers.wire.messages import Predict, SlotToServer, SlotToWorker
from corosrv.workers.worker.child.control import LOG_BACKLOG, Drops, Ferry, Outbox
from tests.support.descriptors import n_descriptors

Pair = tuple["Outbox[SlotToServer]", socket.socket]
WIDE = "x" * 300_000


@pytest.fixture
def told() -> list[int]:
    return []


@pytest.fixture
def pair(told: list[int]) -> Iterator[Pair]:
    """An outbox, and the socket at the other end."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    codec: StructCodec[SlotToServer, SlotToWorker] = StructCodec(Predict)
    with ours, theirs:
        yield Outbox(ours, codec, Ferry(), Drops(lambda count, interval_ms: told.append(count))), theirs


def read(theirs: socket.socket, count: int) -> list[str]:
    """The last characters of as many messages."""
    frames, messages = Frames(), []
    while len(messages) < count:
        messages += frames.feed(theirs.recv(1 << 16))
    return [StructCodec[SlotToWorker, LogLine](LogLine).decode(message).data[-4:] for message in messages]  # type: ignore[union-attr]


def test_nobody_waits_for_a_reader_and_nothing_is_lost_or_reordered(pair: Pair) -> None:
    outbox, theirs = pair

    for number in range(20):
        outbox.post(LogLine("stdout", f"{WIDE}{number:04}"))

    assert not outbox.is_empty
    assert read(theirs, 20) == [f"{number:04}" for number in range(20)]
    assert outbox.flush(10)


def test_threads_do_not_mix_their_messages(pair: Pair) -> None:
    outbox, theirs = pair

    def post(name: str) -> None:
        for number in range(100):
            outbox.post(LogLine("stdout", f"{'x' * 10_000}{name}{number:03}"))

    threads = [threading.Thread(target=post, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()

    got = read(theirs, 300)
    for thread in threads:
        thread.join(10)
    assert all([word for word in got if word[0] == name] == [f"{name}{n:03}" for n in range(100)] for name in "abc")


def test_a_destructor_may_post_amid_a_post(pair: Pair) -> None:
    outbox, theirs = pair

    class Talkative:
        def __del__(self) -> None:
            outbox.post(LogLine("stdout", "gone"))

    class Encodes:
        """Collects garbage while the outbox holds its lock."""

        def send(self, data: memoryview, flags: int) -> int:
            gc.collect()
            return ours.send(data, flags)

        def fileno(self) -> int:
            return ours.fileno()

    ours = outbox._socket
    outbox._socket = Encodes()  # type: ignore[assignment]
    talkative = Talkative()
    talkative.itself = talkative  # type: ignore[attr-defined]
    del talkative
    outbox.post(LogLine("stdout", "mine"))
    outbox._socket = ours

    assert read(theirs, 2) == ["mine", "gone"]


def test_a_message_too_large_harms_no_other(pair: Pair) -> None:
    outbox, theirs = pair

    with pytest.raises(FrameTooLarge):
        outbox.post(LogLine("stdout", "x" * (MAX_FRAME + 1)))

    outbox.post(LogLine("stdout", "well"))
    assert read(theirs, 1) == ["well"]


def test_logs_are_dropped_and_counted_while_nobody_reads(pair: Pair, told: list[int]) -> None:
    outbox, theirs = pair
    n_kept = 0
    while outbox._queue.n_bytes <= LOG_BACKLOG:
        outbox.post_log(LogLine("stdout", f"{WIDE}kept"))
        n_kept += 1

    for _ in range(50):  # one of them waits
        outbox.post_log(LogLine("stdout", "lost"))

    assert read(theirs, n_kept) == ["kept"] * n_kept
    assert outbox.flush(10)
    outbox.post_log(LogLine("stdout", "next"))
    assert read(theirs, 1) == ["next"]
    assert told == [50]


def test_flush_ends_when_it_is_of_no_use_any_more(pair: Pair) -> None:
    outbox, _ = pair
    for _ in range(5):
        outbox.post(LogLine("stdout", WIDE))
    given_up = threading.Event()
    waiting = threading.Thread(target=outbox.flush, kwargs={"unless": given_up.is_set})
    waiting.start()

    given_up.set()
    outbox.nudge()

    waiting.join(10)
    assert not waiting.is_alive()


def test_when_the_other_side_is_gone_nothing_raises_or_waits(pair: Pair) -> None:
    outbox, theirs = pair
    for _ in range(5):
        outbox.post(LogLine("stdout", WIDE))

    theirs.close()

    assert outbox.flush(10)
    outbox.post(LogLine("stdout", "nobody"))
    outbox.post_log(LogLine("stdout", "nobody"))
    assert outbox.is_empty


def test_a_listener_is_called_once(pair: Pair) -> None:
    outbox, theirs = pair
    called = threading.Event()
    outbox.post(LogLine("stdout", WIDE))
    outbox.on_empty(called.set)

    read(theirs, 1)

    assert called.wait(10)


@pytest.mark.own_process
def test_descriptors_wait_with_their_message_and_are_closed(pair: Pair) -> None:
    outbox, theirs = pair
    before = n_descriptors()
    read_end, write_end = os.pipe()
    for number in range(4):
        outbox.post(LogLine("stdout", f"{WIDE}{number:04}"))
    outbox.post(LogLine("stdout", "beside"), fds=[write_end])
    os.close(write_end)

    received: list[int] = []
    frames, messages = Frames(), list[bytes]()
    while len(messages) < 5:
        data, fds = descriptors.receive(theirs, 1 << 16)
        received += fds
        messages += frames.feed(data)

    assert outbox.flush(10)
    assert b"beside" in messages[-1]
    os.write(received[0], b"x")
    assert os.read(read_end, 1) == b"x"
    descriptors.close_all([read_end, *received])
    assert n_descriptors() <= before + 1  # the ferry's epoll


@pytest.mark.own_process
def test_descriptors_of_messages_that_are_dropped_are_closed(pair: Pair) -> None:
    outbox, _ = pair
    before = n_descriptors()
    read_end, write_end = os.pipe()
    for number in range(4):
        outbox.post(LogLine("stdout", f"{WIDE}{number:04}"))
    outbox.post(LogLine("stdout", "beside"), fds=[write_end])
    os.close(write_end)

    outbox.close()

    assert os.read(read_end, 1) == b""  # nobody holds the other end
    os.close(read_end)
    assert n_descriptors() <= before + 1
