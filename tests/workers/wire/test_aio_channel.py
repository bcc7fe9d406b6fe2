"""The channel for an event loop, against the server's end of the same socket pair."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from corosrv.base.errors import ChannelClosed, FrameTooLarge, ProtocolError
from corosrv.contracts.jobs.setup import LogLine
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.aio_channel import AioChannel
from corosrv.workers.wire.codec import Frames, StructCodec, framed
from tests.support.descriptors import n_descriptors

TIMEOUT = 10.0  # seconds
CODEC: StructCodec[LogLine, LogLine] = StructCodec(LogLine)


class Ends:
    """A channel with what it receives, and the raw other end."""

    def __init__(self) -> None:
        ours, self.raw = socket.socketpair()
        self.received: asyncio.Queue[tuple[LogLine, tuple[int, ...]]] = asyncio.Queue()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.channel: AioChannel[LogLine, LogLine] = AioChannel(
            ours, CODEC, lambda message, fds: self.received.put_nowait((message, fds)), self.ended.set_result
        )

    async def read(self, n_messages: int) -> list[bytes]:
        """Returns so many messages as the other side reads them."""
        frames, messages = Frames(), list[bytes]()
        self.raw.setblocking(False)
        while len(messages) < n_messages:
            messages += frames.feed(await asyncio.get_running_loop().sock_recv(self.raw, 1 << 20))
        return messages

    def close(self) -> None:
        self.channel.close()
        self.raw.close()


def run(scenario: Callable[[Ends], Awaitable[Any]]) -> None:
    async def with_ends() -> None:
        ends = Ends()
        try:
            await asyncio.wait_for(scenario(ends), TIMEOUT)
        finally:
            ends.close()

    asyncio.run(with_ends())


def test_messages_cross_in_both_directions() -> None:
    async def scenario(ends: Ends) -> None:
        ends.channel.send(LogLine("a", "b"))
        ends.raw.sendall(framed(CODEC.encode(LogLine("c", "d"))) * 2)

        assert CODEC.decode((await ends.read(1))[0]) == LogLine("a", "b")
        assert await ends.received.get() == (LogLine("c", "d"), ())
        assert await ends.received.get() == (LogLine("c", "d"), ())

    run(scenario)


def test_sending_never_waits_keeps_the_order_and_all_of_it_arrives() -> None:
    async def scenario(ends: Ends) -> None:
        for number in range(60):
            ends.channel.send(LogLine(str(number), "x" * 100_000))
        waiting = asyncio.ensure_future(ends.channel.wait_until_sent())
        await asyncio.sleep(0)
        assert not waiting.done()

        messages = [CODEC.decode(data) for data in await ends.read(60)]

        assert [message.source for message in messages if message] == [str(number) for number in range(60)]
        await waiting

    run(scenario)


@pytest.mark.own_process
def test_descriptors_come_with_their_messages() -> None:
    async def scenario(ends: Ends) -> None:
        fd = descriptors.make([b"content"])
        frame = framed(CODEC.encode(LogLine("a", "b")))
        ends.raw.sendall(frame)
        descriptors.send(ends.raw, frame, [fd])
        ends.raw.sendall(frame)
        os.close(fd)

        received = [(await ends.received.get())[1] for _ in range(3)]

        assert [len(fds) for fds in received] == [0, 1, 0]
        assert bytes(descriptors.map_value(received[1][0], 7)) == b"content"
        os.close(received[1][0])

    before = n_descriptors("memfd:")
    run(scenario)
    assert n_descriptors("memfd:") == before


@pytest.mark.own_process
def test_descriptors_of_unsent_messages_go_later_or_are_closed() -> None:
    async def scenario(ends: Ends) -> None:
        fd = descriptors.make([b"content"])
        for _ in range(40):  # more than the socket takes
            ends.channel.send(LogLine("a", "x" * 100_000))
        ends.channel.send(LogLine("a", "b"), [fd])
        os.close(fd)

    before = n_descriptors("memfd:")
    run(scenario)
    assert n_descriptors("memfd:") == before


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", framed(b"no json"), framed(b'{"type":"log_line"}')])
def test_what_is_no_message_ends_the_channel_once(data: bytes) -> None:
    async def scenario(ends: Ends) -> None:
        ends.raw.sendall(data * 2)

        assert await ends.ended
        with pytest.raises(ChannelClosed):
            ends.channel.send(LogLine("a", "b"))

    run(scenario)


def test_a_message_that_its_handler_does_not_allow_ends_the_channel() -> None:
    async def scenario(ends: Ends) -> None:
        def refuse(message: LogLine, fds: tuple[int, ...]) -> None:
            raise ProtocolError("not now")

        ours, theirs = socket.socketpair()
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        channel: AioChannel[LogLine, LogLine] = AioChannel(ours, CODEC, refuse, ended.set_result)
        theirs.sendall(framed(CODEC.encode(LogLine("a", "b"))) * 2)

        assert await ended == "not now"
        assert channel.is_closed
        theirs.close()

    run(scenario)


def test_an_end_within_a_message_is_told_from_an_end() -> None:
    async def scenario(ends: Ends) -> None:
        ends.raw.sendall(b"\0\0")
        ends.raw.close()

        assert await ends.ended == "the channel ended within a frame"

    run(scenario)


def test_who_waits_to_send_is_woken_by_the_end() -> None:
    async def scenario(ends: Ends) -> None:
        for _ in range(40):
            ends.channel.send(LogLine("a", "x" * 100_000))
        waiting = asyncio.ensure_future(ends.channel.wait_until_sent())
        await asyncio.sleep(0)
        ends.raw.close()

        await waiting
        assert await ends.ended

    run(scenario)


def test_a_message_over_the_limit_is_not_sent_and_the_next_one_is() -> None:
    async def scenario(ends: Ends) -> None:
        with pytest.raises(FrameTooLarge):
            ends.channel.send(LogLine("a", "x" * (9 << 20)))
        ends.channel.send(LogLine("a", "b"))

        assert len(await ends.read(1)) == 1

    run(scenario)


@pytest.mark.own_process
def test_an_unknown_message_is_skipped_and_its_descriptors_closed() -> None:
    async def scenario(ends: Ends) -> None:
        fd = descriptors.make([b"x"])
        descriptors.send(ends.raw, framed(b'{"type":"new"}'), [fd])
        os.close(fd)
        ends.raw.sendall(framed(CODEC.encode(LogLine("c", "d"))))

        assert (await ends.received.get())[0] == LogLine("c", "d")

    before = n_descriptors("memfd:")
    run(scenario)
    assert n_descriptors("memfd:") == before
