"""The client's side of HTTP/1.1, against a server that sends what a test says."""

import asyncio

import pytest

from corosrv.client.http import ConnectionBroken, HttpConnections, HttpReply, ServerAddress, parse_head

OK = b"HTTP/1.1 200 OK\r\n"


def exchange(*answers: bytes, n: int = 1) -> tuple[list[HttpReply], list[bytes], int]:
    """Asks `n` times a server that gives one answer for each request, and ends with a connection's last one.

    Returns the replies, the requests, and how many connections there were.
    """
    requests: list[bytes] = []
    left = list(answers)
    n_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_connections
        n_connections += 1
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                requests.append(head + await reader.readexactly(length))
                answer = left.pop(0)
                writer.write(answer)
                await writer.drain()
                if not answer or b"Connection: close" in answer or (b"ength" not in answer and b"hunked" not in answer):
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def run() -> list[HttpReply]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connections = HttpConnections(ServerAddress(f"http://127.0.0.1:{port}/base/v1"), {"X-Key": "k"})
        try:
            return [await connections.ask("POST", "/v1/x", {"A": "b"}, b"body") for _ in range(n)]
        finally:
            await connections.close()
            server.close()

    return asyncio.run(asyncio.wait_for(run(), 10)), requests, n_connections


def test_a_request_has_its_headers_and_the_prefix_of_its_servers_paths():
    _, (request,), _ = exchange(OK + b"Content-Length: 0\r\n\r\n")

    assert request.startswith(b"POST /base/v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Key: k\r\nA: b\r\nContent-Length: 4\r\n\r\nbody" in request


def test_a_connection_that_its_server_has_closed_is_closed_here_as_well():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def run() -> list[bool]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        connections = HttpConnections(ServerAddress(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), {})
        used = []
        try:
            for _ in range(3):
                await connections.ask("GET", "/", {})
                used.append(connections._idle[0])
                while used[-1].is_open:
                    await asyncio.sleep(0.01)
        finally:
            await connections.close()
            server.close()
        return [connection.writer.is_closing() for connection in used]

    assert asyncio.run(asyncio.wait_for(run(), 10)) == [True, True, True]


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: t\r\n\r\n",
        OK + b"Connection: close\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ],
)
def test_a_body_is_read_however_its_end_is_told(answer):
    (reply,), _, _ = exchange(answer)

    assert (reply.status, reply.body) == (200, b"hello")


def test_a_connection_is_used_again_unless_the_server_closes_it():
    plain, closing = OK + b"Content-Length: 0\r\n\r\n", OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n"

    assert exchange(plain, plain, plain, n=3)[2] == 1
    assert exchange(closing, closing, n=2)[2] == 2


def test_a_connection_that_was_closed_between_two_requests_is_made_again():
    plain = OK + b"Content-Length: 0\r\n\r\n"

    replies, _, n_connections = exchange(plain, b"", plain, n=2)

    assert ([reply.status for reply in replies], n_connections) == ([200, 200], 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        OK + b"Connection: close\r\nContent-Length: 9\r\n\r\ncut",
        OK + b"Content-Length: -1\r\nConnection: close\r\n\r\n",
        OK + b"Content-Length: 99999999999\r\nConnection: close\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
        OK + b"X: " + b"x" * 70_000,
    ],
)
def test_what_is_no_whole_answer_breaks_the_connection(answer):
    with pytest.raises(ConnectionBroken):
        exchange(answer)


def test_a_head_is_parsed_whatever_the_case_of_its_names():
    assert parse_head(b"HTTP/1.1 429 Too Many\r\nRETRY-after:  3 \r\n\r\n") == (429, {"retry-after": "3"})


def test_where_nobody_listens_there_is_no_connection():
    async def ask() -> None:
        await HttpConnections(ServerAddress("http://127.0.0.1:1"), {}).ask("GET", "/", {})

    with pytest.raises(ConnectionBroken, match="no connection"):
        asyncio.run(ask())
