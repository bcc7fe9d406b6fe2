"""An MCP server made with the official SDK, for tests: its tools add, hang, tell too much, and have odd descriptions.

It asks for a token, prints its port, and counts at /hanging the calls that hang now.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOKEN = "t0ken-of-the-mcp-server"
ODD = "odd name/of a tool ü"


@contextmanager
def serving_mcp(folder: Path) -> Iterator[int]:
    """Runs the server in a process of its own; returns its port."""
    with (folder / "mcp.log").open("wb") as log:
        command = [sys.executable, "-m", "tests.support.mcp_server"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=Path(__file__).parent.parent.parent)
    assert process.stdout is not None
    with process.stdout as out:
        try:
            yield int(out.readline())
        finally:
            process.kill()
            process.wait(10)


def main() -> None:
    import anyio
    import uvicorn
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations
    from starlette.responses import PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Route

    server = MCPServer("tests")
    n_hanging = 0

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    async def hang() -> str:
        """Hangs."""
        nonlocal n_hanging
        n_hanging += 1
        try:
            await anyio.sleep(600)
        finally:
            n_hanging -= 1
        return ""

    @server.tool()
    def huge() -> str:
        """Tells a hundred megabytes."""
        return "x" * 100_000_000

    @server.tool()
    def fail() -> str:
        """Fails."""
        raise ValueError("this tool fails")

    @server.tool(name=ODD)
    def odd() -> str:
        return "odd"

    @server.tool()
    def unfit(x: str) -> str:
        return x

    tools: Any = server._tool_manager
    for tool in tools.list_tools():  # so that a small model comes to an end
        tool.parameters["additionalProperties"] = False
    tools.get_tool("unfit").parameters = {"type": "object", "properties": {"x": {"pattern": "(?=a)b(?<=c)"}}}

    async def away(request: Any) -> RedirectResponse:
        return RedirectResponse(f"http://localhost:{request.url.port}/mcp", 307)

    # The package would refuse what the tool returns.
    tools.get_tool(ODD).fn_metadata.output_schema = {"type": "object", "properties": {"result": {"const": "even"}}}

    async def large(request: Any) -> Response:
        return Response(b" " * 100_000_000, media_type="application/json")

    async def hanging(request: Any) -> PlainTextResponse:
        return PlainTextResponse(str(n_hanging))

    app = server.streamable_http_app()
    app.routes.append(Route("/mcp/away", away, methods=["GET", "POST"]))
    app.routes.append(Route("/mcp/large", large, methods=["GET", "POST"]))

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/hanging":
            await (await hanging(None))(scope, receive, send)
        elif scope["type"] == "http" and (b"authorization", f"Bearer {TOKEN}".encode()) not in scope["headers"]:
            await PlainTextResponse("who are you?", 401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sys.stdout.write(f"{sock.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(guarded, log_level="warning")).run(sockets=[sock])


if __name__ == "__main__":
    os.nice(5)
    main()
