"""Asks MCP servers for their tools, and calls them: by the `mcp` package, whose event loop has a thread of its own.

That thread is the system's and the loop waits with the system's epoll, whatever is monkey-patched, so the hub goes on.
The loop looks up no name: a connection goes to an address that was checked before, and to no other origin than the
server's own. Whoever asks waits for a descriptor, with a time limit of its own. The package takes seconds to import,
so McpLoop does it at the server's start.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import logging
import math
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import gevent
import gevent.monkey
import msgspec

from corosrv.base.errors import DestinationRefused, ReadTimeout
from corosrv.base.outgoing import Destinations, origin
from corosrv.base.waits import ThreadLock, TimedOut, own_hub, wait_readable
from corosrv.dialects.openai.responses.mcp_items import McpOutcome
from corosrv.dialects.openai.responses.schema import McpListedTool

MAX_ANSWER_BYTES = 1 << 20  # of one HTTP answer of a server, as the package limits its events
MAX_LISTED = 128  # tools of one server
_MAX_PAGES = 16
_MAX_WORDS = 500  # characters of a fault
_CLOSE_S = 5.0  # in which a session says goodbye
_CONNECT_S = 10.0
_LOOK_S = 1.0  # between two looks at a deadline

# With those that the package and httpx2 import when a session needs them.
_MODULES = ("anyio._backends._asyncio", "h11", "httpcore2", "jsonschema", "mcp.client", "mcp.client.streamable_http")
_start_thread = gevent.monkey.get_original("_thread", "start_new_thread")
_Epoll = gevent.monkey.get_original("selectors", "EpollSelector")
_Ask = Callable[[Any], Awaitable[Any]]  # what is done with the package's client


class McpFault(Exception):
    """A server that could not be reached, or did not do what it was asked; `members` describe it in an item.

    Caught where a list or a call is shown.
    """

    def __init__(self, message: str, code: int = -32000, kind: str = "mcp_protocol_error") -> None:
        super().__init__(message[:_MAX_WORDS])
        self.members = {"type": kind, "code": code, "message": str(self)}


class McpLoop:
    """The event loop of all sessions of a process, which begins with the first one. Usable from any thread."""

    def __init__(self) -> None:
        """Imports the package, which takes seconds. Without it, requests that need it are refused."""
        for name in _MODULES:
            with suppress(ImportError):
                importlib.import_module(name)
        self._lock = ThreadLock()
        self._loop: Any = None
        self._pid = 0
        self._waiting: list[Callable[[], object]] = []
        self.tls: ssl.SSLContext | None = None

    def call(self, function: Callable[[], object]) -> None:
        """Has a function called by the loop's thread. Never waits."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._loop = os.getpid(), None
                _start_thread(self._run, ())
            if self._loop is None:
                self._waiting.append(function)
                return
        self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        # They tell of URLs, and of what servers wrote; "client" is the package's name for its sessions.
        for name in ("mcp", "client", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        loop = asyncio.SelectorEventLoop(_Epoll())
        loop.set_exception_handler(lambda loop, context: None)  # of tasks whose session is over
        with self._lock:
            self._loop = loop
            for function in self._waiting:
                loop.call_soon(function)
            self._waiting.clear()
        loop.run_forever()

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context of all sessions. Called by the loop's thread."""
        if self.tls is None:
            self.tls = ssl.create_default_context()
        return self.tls


class McpAsk:
    """One thing that a server was asked for. Belongs to the thread that waits for it; only `settle` may be others'."""

    def __init__(self, session: McpSession, run: _Ask, seconds: float) -> None:
        self.run = run
        self._session = session
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._lock = ThreadLock()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._outcome: Any = None
        self._is_settled = False

    def settle(self, outcome: Any) -> None:
        """Ends the wait, once, with a value or the McpFault to raise."""
        with self._lock:
            if not self._is_settled and self._fd >= 0:
                self._is_settled, self._outcome = True, outcome
                os.eventfd_write(self._fd, 1)

    def wait(self, timeout: float | None) -> Any:
        """Waits for the value. Raises ReadTimeout after `timeout` seconds, and McpFault, also when its time is over."""
        until = time.monotonic() + (math.inf if timeout is None else timeout)
        while not self._is_settled:
            now = time.monotonic()
            if now >= self._deadline:
                self._session.abort()
                raise McpFault(f"the MCP server did not answer within {self._seconds:g} s")
            if now >= until:
                raise ReadTimeout("the MCP server has not answered yet")
            with suppress(TimedOut):  # the deadline may have come nearer
                wait_readable(self._fd, min(self._deadline - now, until - now, _LOOK_S))
        if isinstance(self._outcome, McpFault):
            raise self._outcome
        return self._outcome

    def cancel(self) -> None:
        """Ends the wait at once, and the session. Never waits."""
        self._session.abort()
        self.settle(McpFault("the call was cancelled"))

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class McpSession:
    """A session with one server, for one response. Belongs to the thread that made it."""

    def __init__(self, loop: McpLoop, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        """Looks the server's name up. Waits; raises McpFault."""
        self._loop = loop
        self._url = url
        self._headers = headers
        self._timeout_s = timeout_s
        self._addresses = _look_up(url, timeout_s)
        self._queue: asyncio.Queue[McpAsk | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._asks: list[McpAsk] = []
        self._fault = ""  # of the transport, which says more than what the package makes of it
        self._ended_by = McpFault("the session with the MCP server has ended")
        self.is_over = False
        loop.call(self._begin)

    def list_tools(self) -> McpAsk:
        """Asks for the server's tools, as McpListedTools."""
        return self._ask(_list_tools)

    def call(self, name: str, arguments: dict[str, Any]) -> McpAsk:
        """Asks for a call of a tool: an McpOutcome."""

        async def run(client: Any) -> McpOutcome:
            return _outcome(await client.call_tool(name, arguments))

        return self._ask(run)

    def _ask(self, run: _Ask) -> McpAsk:
        ask = McpAsk(self, run, self._timeout_s)
        self._loop.call(lambda: self._put(ask))
        return ask

    def abort(self) -> None:
        """Ends the session whatever it does. Never waits; usable from any thread."""
        self.is_over = True
        self._loop.call(self._cancel)

    def close(self) -> None:
        """Ends the session, which says goodbye to its server meanwhile. Never waits; twice is harmless."""
        if not self.is_over:
            self.is_over = True
            self._loop.call(self._finish)

    # What follows runs in the loop's thread.

    def _begin(self) -> None:
        self._queue = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._serve(self._queue))

    def _put(self, ask: McpAsk) -> None:
        if self._task is None or self._queue is None or self._task.done():
            ask.settle(self._ended_by)
            return
        self._asks.append(ask)
        self._queue.put_nowait(ask)

    def _finish(self) -> None:
        if self._queue is not None:
            self._queue.put_nowait(None)
            asyncio.get_running_loop().call_later(_CLOSE_S, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            asyncio.get_running_loop().call_later(_CLOSE_S, self._cancel)  # where it cleans up for too long

    async def _serve(self, queue: asyncio.Queue[McpAsk | None]) -> None:
        try:
            await self._talk(queue)
        except Exception as error:  # whatever the package or the server came up with
            self._ended_by = self._fault_of(error)
        finally:
            self.is_over = True
            for ask in self._asks:
                ask.settle(self._ended_by)

    async def _talk(self, queue: asyncio.Queue[McpAsk | None]) -> None:
        import httpx2
        from mcp.client import Client
        from mcp.client.streamable_http import streamable_http_client

        timeout = httpx2.Timeout(self._timeout_s, connect=min(_CONNECT_S, self._timeout_s))
        http = httpx2.AsyncClient(
            transport=_transport(self), headers=dict(self._headers), timeout=timeout, trust_env=False
        )
        async with http, Client(streamable_http_client(self._url, http_client=http), cache=None) as client:
            # The package checks what a tool returns by the server's own schema, whose patterns may take forever.
            client.session.validate_tool_result = _accept  # type: ignore[method-assign]
            while (ask := await queue.get()) is not None:
                self._fault = ""
                try:
                    ask.settle(await ask.run(client))
                except Exception as error:  # the session goes on: the next call may succeed
                    ask.settle(self._fault_of(error))
                self._asks.remove(ask)

    def _fault_of(self, error: BaseException) -> McpFault:
        while inner := getattr(error, "exceptions", None):  # a group of what several tasks raised
            error = inner[0]
        if isinstance(error, McpFault):
            return error
        fault, self._fault = self._fault, ""
        if fault:
            return McpFault(fault, 502, "http_error")
        if isinstance(error, ImportError):
            return McpFault("the mcp package cannot be imported here: pip install 'corosrv[mcp]'")
        name = type(error).__name__
        if name == "MCPError":
            code = getattr(error, "code", None)
            return McpFault(str(error) or name, code if isinstance(code, int) else -32000)
        if name.startswith("Connect"):
            return McpFault("the MCP server cannot be reached", 502, "http_error")
        return McpFault(f"the MCP server gave no proper answer ({name})")


def _look_up(url: str, seconds: float) -> list[str]:
    """Returns the addresses of a server, which the operator has allowed. Waits; raises McpFault."""
    _, host, port = origin(url)
    assert host is not None, "URLs of MCP servers have hosts"
    limit = McpFault("the MCP server's name could not be looked up in time")
    try:
        with nullcontext() if own_hub() is None else gevent.Timeout(seconds, limit):
            return Destinations().look_up(host, port or 0, to_loopback=_is_loopback(host))
    except DestinationRefused as error:
        raise McpFault(str(error)) from None
    except OSError:
        raise McpFault("the MCP server's name cannot be found", 502, "http_error") from None


def _is_loopback(host: str) -> bool:
    """Returns whether a host's very name is this machine, so that the operator who allowed it meant that."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _transport(session: McpSession) -> Any:
    """Makes the transport of a session, which goes to the addresses that were looked up, and reads so much at most."""
    import httpx2

    site, addresses = origin(session._url), session._addresses

    def pin(request: Any, address: str) -> Any:
        return httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers={**dict(request.headers), "accept-encoding": "identity"},
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": request.url.host},
        )

    class LimitedBody(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            n_bytes = 0
            async for piece in self._stream:
                n_bytes += len(piece)
                if n_bytes > MAX_ANSWER_BYTES:
                    session._fault = f"the MCP server's answer is larger than {MAX_ANSWER_BYTES} bytes"
                    raise httpx2.StreamError(session._fault)
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    class PinnedTransport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: Any) -> Any:
            if origin(str(request.url)) != site:
                raise httpx2.ConnectError("another origin")
            for address in addresses:
                with suppress(httpx2.ConnectError):
                    answer = await super().handle_async_request(pin(request, address))
                    break
            else:
                raise httpx2.ConnectError("no address can be reached")
            if answer.headers.get("content-encoding", "identity") != "identity":
                await answer.aclose()
                session._fault = "the MCP server's answer is compressed, which was not asked for"
                raise httpx2.StreamError(session._fault)
            if answer.status_code in (401, 403) and request.method == "POST":
                session._fault = f"the MCP server refuses the request (status {answer.status_code})"
            answer.stream = LimitedBody(answer.stream)
            return answer

    return PinnedTransport(verify=session._loop.context(), trust_env=False)


async def _accept(name: str, result: Any) -> None:
    """Takes what a tool returns as it is."""


async def _list_tools(client: Any) -> list[McpListedTool]:
    tools: list[McpListedTool] = []
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            annotations = (
                None
                if tool.annotations is None
                else tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)
            )
            tools.append(McpListedTool(tool.name, tool.input_schema, tool.description, annotations))
        if len(tools) > MAX_LISTED:
            raise McpFault(f"the MCP server lists more than {MAX_LISTED} tools")
        if not (cursor := page.next_cursor):
            return tools
    raise McpFault(f"the MCP server's list of tools has more than {_MAX_PAGES} pages")


def _outcome(result: Any) -> McpOutcome:
    pieces = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    text = "\n".join(pieces)
    if not pieces and result.structured_content is not None:
        text = msgspec.json.encode(result.structured_content).decode()
    if not result.is_error:
        return McpOutcome(text)
    return McpOutcome(text, {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]})
