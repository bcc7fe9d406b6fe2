"""Makes the requests of a rollout, and sends them over HTTP/1.1 with asyncio, on connections that are used again.

The programs of the terminal, which block, have a connection of the standard library for each request.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from corosrv.base.errors import Misuse

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One request for answers to a prompt; a group has one, or as many as answers where it is split."""

    group: str  # what the server calls it
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Makes the requests of one rollout. `members`: of each body; `name`: of the rollout, unique."""

    name: str
    n: int
    path: str
    members: Mapping[str, Any]
    is_split: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise Misuse(f"n must be at least 1, not {self.n}")
        if self.path not in (CHAT, TEXT):
            raise Misuse(f"path must be {CHAT} or {TEXT}, not {self.path!r}")
        for name in ("n", "stream", "best_of"):
            if name in self.members:
                raise Misuse(f"{name} cannot be set for the requests of a rollout")

    def requests(self, index: int, prompt: Any) -> list[GroupRequest]:
        """Makes the requests for one prompt: a text, a conversation, token ids, or a mapping of members of the body.

        Raises TypeError and ValueError for what is no JSON.
        """
        members = {**self.members, **self._prompt(prompt)}
        if not self.is_split or self.n == 1:
            return [self._request(str(index), {**members, "n": self.n})]
        # As a server would seed the answers of one request.
        seed = members.get("seed")
        seeds = [{} if seed is None else {"seed": seed + number} for number in range(self.n)]
        return [self._request(f"{index}.{number}", {**members, **seeds[number]}) for number in range(self.n)]

    def _request(self, suffix: str, members: dict[str, Any]) -> GroupRequest:
        group = f"{self.name}-{suffix}"
        headers = {"Content-Type": "application/json", "X-Group-Id": group, "Idempotency-Key": group}
        return GroupRequest(group, self.path, headers, json.dumps(members).encode())

    def _prompt(self, prompt: Any) -> Mapping[str, Any]:
        if isinstance(prompt, Mapping):
            return prompt
        if self.path == TEXT:
            return {"prompt": prompt}
        return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt}


MAX_HEAD = 64 * 1024  # bytes
MAX_BODY = 256 << 20  # bytes
_NO_BODY = frozenset({204, 304})


class ConnectionBroken(Exception):
    """There is no answer: no connection, or one that broke, or what came is no HTTP. A signal within this package.

    `has_begun`: something of the answer had come.
    """

    def __init__(self, reason: str, *, has_begun: bool = False) -> None:
        super().__init__(reason)
        self.has_begun = has_begun


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Holds an answer. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class ServerAddress:
    """Says where a server is: `http://host:port`, with a prefix of its paths or without."""

    def __init__(self, url: str) -> None:
        """Raises Misuse for what is no such URL."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise Misuse(f"url: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise Misuse(f"url must be http://HOST:PORT or https://HOST:PORT, not {url!r}")
        if parts.username is not None:
            raise Misuse("url: give the key as api_key, not in the URL")
        self.host = parts.hostname
        self.is_tls = parts.scheme == "https"
        self.port = port or (443 if self.is_tls else 80)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.netloc = parts.netloc


def blocking_connection(address: ServerAddress, timeout: float) -> http.client.HTTPConnection:
    """Makes a connection that is not open yet. `timeout`: seconds without a byte."""
    if address.is_tls:
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(address.host, address.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout)


def event_data(answer: http.client.HTTPResponse, max_line: int) -> Iterator[tuple[str, bytes]]:
    """Yields the ids and the data of server-sent events that have one line of data each; "" without an id. Waits."""
    number = ""
    while line := answer.readline(max_line):
        if line.startswith(b"id: "):
            number = line.removeprefix(b"id: ").decode("latin-1").strip()
        elif line.startswith(b"data: "):
            yield number, line.removeprefix(b"data: ")


class HttpConnections:
    """Keeps connections to one server. Belongs to one event loop."""

    def __init__(self, address: ServerAddress, headers: Mapping[str, str]) -> None:
        """`headers`: of every request."""
        self._address = address
        self._tls = ssl.create_default_context() if address.is_tls else None
        self._headers = {"Host": address.netloc, "Accept-Encoding": "identity", **headers}
        self._idle: list[_ClientConnection] = []

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> HttpReply:
        """Sends a request and returns its answer. Raises ConnectionBroken. Cancelling it closes its connection."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                connection.close()
                continue
            try:
                return await self._ask_over(connection, method, path, headers, body)
            except ConnectionBroken as broken:
                # The server had closed it, as it may between two requests.
                if broken.has_begun:
                    raise
        return await self._ask_over(await self._connect(), method, path, headers, body)

    async def _connect(self) -> _ClientConnection:
        address = self._address
        try:
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=self._tls, limit=MAX_HEAD)
        except OSError as error:
            raise ConnectionBroken(f"no connection: {error.strerror or error}") from None
        return _ClientConnection(reader, writer)

    async def _ask_over(
        self, connection: _ClientConnection, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> HttpReply:
        fields = {**self._headers, **headers, "Content-Length": str(len(body))}
        lines = [
            f"{method} {self._address.prefix}{path} HTTP/1.1",
            *(f"{name}: {text}" for name, text in fields.items()),
        ]
        is_reusable = False
        try:
            connection.writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
            await connection.writer.drain()
            reply = await connection.read_reply()
            is_reusable = connection.is_reusable
            return reply
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            words = "the connection was lost" if isinstance(error, (OSError, EOFError)) else f"no HTTP answer: {error}"
            raise ConnectionBroken(words, has_begun=connection.has_begun) from None
        finally:
            if is_reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def close(self) -> None:
        """Closes the connections that nobody uses."""
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            with suppress(OSError):
                await connection.writer.wait_closed()


class _ClientConnection:
    """One connection, and the reading of its answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.has_begun = False
        self.is_reusable = False

    @property
    def is_open(self) -> bool:
        return not self._reader.at_eof() and not self.writer.is_closing()

    def close(self) -> None:
        self.writer.close()

    async def read_reply(self) -> HttpReply:
        """Reads one answer. Raises OSError, EOFError, asyncio.LimitOverrunError, and ValueError for what is no HTTP."""
        self.has_begun = self.is_reusable = False
        status = 100
        while 100 <= status < 200:
            head = await self._reader.readuntil(b"\r\n\r\n")
            self.has_begun = True
            status, headers = parse_head(head)
        is_framed = "content-length" in headers or "transfer-encoding" in headers or status in _NO_BODY
        body = b"" if status in _NO_BODY else await self._read_body(headers)
        self.is_reusable = is_framed and headers.get("connection", "").lower() != "close"
        return HttpReply(status, headers, body)

    async def _read_body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._read_chunks()
        if "content-length" in headers:
            return await self._reader.readexactly(_size(headers["content-length"], 10))
        body = bytearray()
        while piece := await self._reader.read(MAX_HEAD):
            body += piece
            _check_size(len(body))
        return bytes(body)

    async def _read_chunks(self) -> bytes:
        body = bytearray()
        while size := _size((await self._reader.readuntil(b"\r\n")).partition(b";")[0].decode("latin-1"), 16):
            _check_size(len(body) + size)
            body += (await self._reader.readexactly(size + 2))[:-2]
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers, which nobody wants
        return bytes(body)


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Returns the status and the headers of an answer. Raises ValueError."""
    status_line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    version, _, rest = status_line.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"it begins with {status_line[:40]!r}")
    fields = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in fields}


def _size(text: str, base: int) -> int:
    digits = text.strip()
    if not digits.isalnum() or not digits.isascii():
        raise ValueError(f"the size of its body is {digits[:20]!r}")
    size = int(digits, base)
    _check_size(size)
    return size


def _check_size(size: int) -> None:
    if size > MAX_BODY:
        raise ValueError(f"its body is larger than {MAX_BODY} bytes")
