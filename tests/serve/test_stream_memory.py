"""A stream that waits keeps nothing that only its beginning needed. The applications here know nothing of corosrv."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import Connection
from tests.support.waiting import eventually

FRONT = (
    "gunicorn", "-k", "corosrv.web.http.front.Front", "--no-control-socket", "-b", "127.0.0.1:0"
)  # fmt: skip

# The first request gets a stream that stays open until the second has looked at what the first one keeps.
APPLICATION = """
import weakref
import gevent
from gevent.event import Event

class Mark:
    pass

marks, streams, is_looked_at = [], [], Event()

def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] == "/look":
        is_looked_at.set()
        return [b"environ %s, spawning stack %s" % (
            b"kept" if marks[0]() else b"dropped", b"kept" if streams[0].spawning_stack else b"dropped")]
    environ["mark"] = mark = Mark()
    marks.append(weakref.ref(mark))
    streams.append(gevent.getcurrent())
    return stream()

def stream():
    yield b"first"
    is_looked_at.wait(30)
"""

HOOK = """
import sys

def post_request(worker, req, environ, resp):
    print("over:", req.uri, environ["HTTP_X_COLOUR"], dict(resp.headers)["Content-Type"], file=sys.stderr, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stream_app.py").write_text(APPLICATION)
    (tmp_path / "hook_conf.py").write_text(HOOK)
    return tmp_path


def serve(start: Servers, folder: Path, *more: str) -> Server:
    return start.start(
        *FRONT, "--pythonpath", str(folder), "--graceful-timeout", "1", *more, "stream_app:application", wait_for=None
    )


def open_stream(server: Server, client: Connection) -> None:
    client.send(b"GET /stream HTTP/1.1\r\nHost: a\r\nX-Colour: blue\r\n\r\n")
    client.head()


def test_a_stream_that_waits_keeps_no_environ_and_no_spawning_stack(start: Servers, folder: Path) -> None:
    server = serve(start, folder)
    with server.connect() as streaming, server.connect() as looking:
        open_stream(server, streaming)

        kept = looking.ask("GET", "/look").body

    assert kept == b"environ dropped, spawning stack dropped"


@pytest.mark.parametrize("how", ["hook", "access log"])
def test_what_a_hook_or_the_access_log_reads_is_kept_for_them(start: Servers, folder: Path, how: str) -> None:
    access_log = ("--access-logfile", "-", "--access-logformat", "over: %(U)s %({x-colour}i)s %({content-type}o)s")
    server = serve(start, folder, *(("-c", str(folder / "hook_conf.py")) if how == "hook" else access_log))
    with server.connect() as streaming, server.connect() as looking:
        open_stream(server, streaming)

        kept = looking.ask("GET", "/look", headers={"X-Colour": "red"}).body

        eventually(lambda: "over: /stream blue text/plain" in server.log, what="the stream's line")
    assert kept.startswith(b"environ kept")
