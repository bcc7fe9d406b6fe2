"""HTTP by hand, one byte at a time where a test wants that: what a client library would hide."""

from __future__ import annotations

import json
import re
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

CHAT = "/v1/chat/completions"


def chat(content: str = "hi", **fields: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    return {"messages": [{"role": "user", "content": content}], **fields}


def request(
    method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, version: str = "1.1"
) -> bytes:
    """A whole request; a body that is not bytes is sent as JSON."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "corosrv"} | ({"Content-Length": str(len(content))} if body is not None else {}) | (headers or {})
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


@dataclass
class Answer:
    """Status, headers by name in lower case, and the body."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error


class Connection:
    """One TCP connection. Closed by `with`, or by leave() and reset()."""

    def __init__(self, port: int, receive_buffer: int | None = None, timeout: float = 60) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self._input = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Sends one request and reads its whole answer."""
        self.send(request(method, path, body, headers))
        return self.answer(method)

    def post(self, body: Any, path: str = CHAT, headers: dict[str, str] | None = None) -> Answer:
        return self.ask("POST", path, body, headers)

    def head(self) -> Answer:
        """Reads up to the empty line."""
        status_line = self._input.readline()
        assert status_line.startswith(b"HTTP/1."), f"no answer: {status_line!r}"
        headers: dict[str, str] = {}
        while (line := self._input.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            assert name.lower() not in headers, f"{name} came twice"
            headers[name.lower()] = value.strip()
        return Answer(int(status_line.split()[1]), headers)

    def answer(self, method: str = "GET") -> Answer:
        """Reads one whole answer, however its end is told."""
        answer = self.head()
        if method != "HEAD" and answer.status not in (204, 304):
            answer.body = b"".join(self.body(answer))
        return answer

    def body(self, answer: Answer) -> Iterator[bytes]:
        """The body behind this head, however its end is told."""
        if answer.headers.get("transfer-encoding") == "chunked":
            yield from self.pieces()
        elif "content-length" in answer.headers:
            length = int(answer.headers["content-length"])
            body = self._input.read(length)
            assert len(body) == length, "the answer is shorter than its Content-Length"
            yield body
        else:
            yield self._input.read()

    def pieces(self) -> Iterator[bytes]:
        """The chunks of a chunked body, up to and with its proper end."""
        while size := int(self._input.readline(), 16):
            piece = self._input.read(size)
            assert self._input.read(2) == b"\r\n"
            yield piece
        assert self._input.readline() == b"\r\n"

    def has_input(self, within: float) -> bool:
        """Something has come that was not read yet, or the end. Waits for it, `within` seconds at most."""
        return bool(select.select([self.socket], [], [], within)[0])

    def is_closed(self) -> bool:
        """The server has closed its end, and sent nothing more. Waits for it."""
        try:
            return self._input.read(1) == b""
        except ConnectionResetError:  # it did not read all that was sent
            return True

    def leave(self) -> None:
        """An ordinary close. The server sees the end of the stream."""
        self._input.close()
        self.socket.close()

    def reset(self) -> None:
        """A close that the server sees as a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.leave()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


_NUMBER = re.compile(rb"\Aid: \d+\n")  # of streams that can be resumed


def events(body: bytes) -> list[Any]:
    """The events of a stream as JSON, [DONE] as the string "[DONE]"; comments are left out. Checks the form."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b"", f"the stream ends in the middle of an event: {rest!r}"
    found: list[Any] = []
    for block in blocks:
        if block == b":":
            continue
        block = _NUMBER.sub(b"", block)
        assert block.startswith(b"data: "), f"not one data line: {block!r}"
        assert b"\n" not in block, f"more than one line: {block!r}"
        data = block.removeprefix(b"data: ")
        found.append("[DONE]" if data == b"[DONE]" else json.loads(data))
    return found


def text_of(chunks: list[Any]) -> str:
    """The text of a streamed chat's first choice."""
    choices = [chunk["choices"][0] for chunk in chunks if chunk != "[DONE]" and chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def named_events(body: bytes) -> list[Any]:
    """The events of a stream whose events have names, as JSON; comments are left out. Checks the form."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b"", f"the stream ends in the middle of an event: {rest!r}"
    found: list[Any] = []
    for block in blocks:
        if block == b":":
            continue
        name, data = _NUMBER.sub(b"", block).split(b"\n")
        found.append(json.loads(data.removeprefix(b"data: ")))
        assert name.decode() == f"event: {found[-1]['type']}"
    return found
