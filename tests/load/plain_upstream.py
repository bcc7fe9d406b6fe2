"""An upstream that costs next to nothing: `python -m tests.load.plain_upstream --port 8001 [--interval 0.02]`.

It computes nothing. A chat is answered with some 500 bytes, a stream gets `max_tokens` events, one every `--interval`
seconds, each in a write of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

MODEL = "m"
_MEMBERS = {"id": "chatcmpl-" + 24 * "0", "created": 1_700_000_000, "model": MODEL}
_USAGE = {"prompt_tokens": 12, "completion_tokens": 24, "total_tokens": 36}


def _chat() -> bytes:
    message = {"role": "assistant", "content": 4 * "A short answer of a few words, again. "}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return json.dumps(_MEMBERS | {"object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    members = _MEMBERS | {"object": "chat.completion.chunk", "choices": [choice]}
    return f"data: {json.dumps(members, separators=(',', ':'))}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


CHAT = _answer(_chat())
LISTING = _answer(json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode())
WELL = _answer(b'{"status":"ok"}')
NOT_THERE = _answer(b'{"error":{"message":"not there"}}', "404 Not Found")
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = _chunk(_event({"content": " word"}, None))
STREAM_END = _chunk(_event({}, "stop")) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    """Answers the requests of one connection, which come one after the other."""

    transport: asyncio.Transport

    def __init__(self, streams: dict[_Connection, int]) -> None:
        self._streams = streams  # and how many events each still gets
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not end or len(rest) < int(length or 0):
            return
        self._data = b""
        self._answer(head.split(b" ", 2)[1], rest)

    def _answer(self, path: bytes, body: bytes) -> None:
        if not body:
            self.transport.write({b"/health": WELL, b"/v1/models": LISTING}.get(path, NOT_THERE))
        elif b'"stream": true' in body:
            self._streams[self] = json.loads(body)["max_tokens"]
            self.transport.write(STREAM_HEAD + EVENT)
        else:
            self.transport.write(CHAT)


def _send_events(streams: dict[_Connection, int]) -> None:
    """Sends the next event of each stream, as an engine does after each step."""
    for connection, n_left in list(streams.items()):
        if n_left > 1:
            streams[connection] = n_left - 1
            connection.transport.write(EVENT)
        else:
            del streams[connection]
            connection.transport.write(STREAM_END)


async def serve(port: int, interval: float) -> None:
    streams: dict[_Connection, int] = {}
    await asyncio.get_running_loop().create_server(lambda: _Connection(streams), "127.0.0.1", port, backlog=4096)
    while True:
        await asyncio.sleep(interval)
        _send_events(streams)


def command(interval: float) -> list[str]:
    """Returns the command that serves, with {port} where the port belongs."""
    return [sys.executable, "-m", "tests.load.plain_upstream", "--port", "{port}", "--interval", str(interval)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interval", type=float, default=0.02)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.interval))


if __name__ == "__main__":
    main()
