"""Ends of event streams, in whatever pieces they come."""

from __future__ import annotations

import pytest

from corosrv.fleet.upstreams.forwarded_call import StreamEnd

CHAT = b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\ndata: [DONE]\n\n'
MESSAGE = (
    b'event: message_delta\ndata: {"text":"message_stop"}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def ended_at(stream: bytes, size: int) -> int | None:
    """Returns after how many bytes the end is known if they come in pieces of this size."""
    end = StreamEnd()
    for start in range(0, len(stream), size):
        if end.feed(stream[start : start + size]):
            return min(start + size, len(stream))
    return None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 1000])
@pytest.mark.parametrize("stream", [CHAT, CHAT.replace(b"\n", b"\r\n"), CHAT.replace(b"data: [D", b"data:[D"), MESSAGE])
def test_an_end_is_recognized_with_its_last_byte_and_not_before(stream: bytes, size: int):
    assert ended_at(stream, size) == len(stream)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    "stream",
    [
        b'data: {"content":"data: [DONE]\\n\\n"}\n\n',
        b"data: [DONE] is what it said\n\n",
        b"xdata: [DONE]\n\n",
        b"x" * 70 + b"data: [DONE]\n\n",
        b"data: [DONE]\n",
        b'event: message_stop\ndata: {"type":"message_stop"}\n',
        b": message_stop\n\n",
    ],
)
def test_nothing_else_is_an_end(stream: bytes, size: int):
    assert ended_at(stream, size) is None
