"""Commands to the management port of a server on another machine: over TCP, with its token."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest
from click.testing import CliRunner, Result
from gevent import socket

from corosrv.base.errors import ManagementError
from corosrv.cli import main
from corosrv.web.management.client import RemoteClient
from corosrv.web.management.joining import JoinTarget, join
from corosrv.workers.manager.joined import Joining
from tests.support.waiting import wait_until
from tests.web.management.serving import Management, in_thread, listening
from tests.workers.manager.scripted import pool_card

Run = Callable[..., Result]


@pytest.fixture
def token(tmp_path: Path) -> str:
    """The file with the token."""
    path = tmp_path / "token"
    path.write_text("secret\n")
    return str(path)


@pytest.fixture
def server(token: str) -> Iterator[Management]:
    with listening(pool_card("default", "add"), port=0, token_file=token) as management:
        wait_until(lambda: management.script.ids() == ["default/0"])
        yield management


@pytest.fixture
def run(server: Management) -> Run:
    """Runs a command against the port."""
    url = f"http://127.0.0.1:{server.listener.port}"
    return lambda *words: in_thread(lambda: CliRunner().invoke(main, [*words, "--server", url]))


def test_ps_shows_a_server_elsewhere_to_who_has_its_token(run: Run, token: str):
    shown = run("ps", "--token-file", token)

    assert shown.exit_code == 0, shown.output
    assert "default/0" in shown.output


def test_the_token_may_come_from_the_environment(run: Run, token: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COROSRV_MGMT_TOKEN_FILE", token)

    assert "default/0" in run("ps").output


def test_without_the_token_nothing_is_told(run: Run):
    shown = run("ps")

    assert shown.exit_code == 1
    assert "needs the token" in shown.output
    assert "default" not in shown.output


def test_a_token_file_that_is_not_there_is_named(run: Run):
    shown = run("ps", "--token-file", "/no/such/token")

    assert shown.exit_code == 1
    assert "/no/such/token cannot be read" in shown.output


def test_a_server_that_is_not_there_is_named():
    shown = CliRunner().invoke(main, ["ps", "--server", "http://127.0.0.1:1"])

    assert shown.exit_code == 1
    assert "the server at http://127.0.0.1:1 gave no answer" in shown.output


SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: corosrv-lanes/1\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx", "with status 200 and no JSON: b'x'"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes((16 << 20) + 1), "is larger than 16777216 bytes"),
        (SWITCH, "is none that workers can join"),
    ],
    ids=["a length that no memory has", "no end", "another protocol"],
)
def test_a_server_of_another_kind_is_told_in_words(answer: bytes, words: str):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65_536)
                connection.sendall(answer)

        target = JoinTarget(place=f"http://127.0.0.1:{listener.getsockname()[1]}")
        serving = gevent.spawn(serve)
        with gevent.Timeout(30), pytest.raises(ManagementError, match=words):
            in_thread(lambda: join(target, Joining(app_ref="app:app")))
        serving.join(30)


@pytest.mark.parametrize(
    "url", ["ftp://front:8079", "http://", "http://front:80x", "http://front/path", "http://f?a=b"]
)
def test_what_is_no_management_port_is_refused(url: str):
    with pytest.raises(ManagementError, match="is no URL"):
        RemoteClient(url)


@pytest.mark.parametrize(("url", "address"), [("http://127.0.0.1:8079", "http://127.0.0.1:8079"),
                                              ("http://127.0.0.1", "http://127.0.0.1:80"),
                                              ("http://[::1]:8079", "http://[::1]:8079"),
                                              ("https://front:8079", "https://front:8079")])  # fmt: skip
def test_each_address_of_a_name_is_a_server(url: str, address: str):
    assert [client.path for client in RemoteClient(url).each_address()] == [address]
