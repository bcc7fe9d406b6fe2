"""The sockets of the management API, and who may use them."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from corosrv.base.errors import SettingsError
from corosrv.web.management.listener import CONNECTIONS, ManagementListener, ManagementSettings
from tests.web.management.serving import Management, in_thread, listening, short_folder
from tests.workers.manager.scripted import managed, pool_card


def ask(port: int, **headers: str) -> int:
    """The status of a request over TCP."""

    def send() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request(
                "GET", "/v1/workers", headers={name.replace("_", "-"): value for name, value in headers.items()}
            )
            return connection.getresponse().status
        finally:
            connection.close()

    return in_thread(send)


@pytest.fixture
def token_server(tmp_path: Path) -> Iterator[Management]:
    (tmp_path / "token").write_text("secret\n")
    with listening(pool_card(), port=0, token_file=str(tmp_path / "token")) as management:
        yield management


def test_the_socket_is_its_owners_alone_and_goes_with_its_server():
    with listening(pool_card()) as management:
        path = Path(management.listener.path)

        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent == Path(management.run_dir)

        management.listener.close()
        management.listener.close()
        assert not path.exists()


def test_without_a_port_nothing_listens_on_tcp():
    with listening(pool_card()) as management:
        assert management.listener.port is None


def test_several_servers_share_a_run_directory():
    with short_folder() as folder, listening(pool_card(), run_dir=folder) as first:
        with listening(pool_card(), run_dir=folder) as second:
            assert first.listener.path != second.listener.path
        assert first.call("GET", "/v1/server")["pid"] == os.getpid()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer secret", 200),
        ("bearer  secret", 200),
        ("Bearer secre", 401),
        ("Basic secret", 401),
        ("Bearer sécret", 401),
    ],
)
def test_the_token_is_asked_for_on_the_port(token_server: Management, authorization: str, status: int):
    assert ask(token_server.listener.port, Authorization=authorization) == status
    assert ask(token_server.listener.port) == 401


def test_the_socket_asks_for_no_token(token_server: Management):
    assert "workers" in token_server.call("GET", "/v1/workers")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_the_port_needs_a_token(host: str):
    with pytest.raises(SettingsError, match="set COROSRV_MGMT_TOKEN_FILE"):
        ManagementSettings(port=0, host=host)
    ManagementSettings(host=host)
    ManagementSettings(port=0, host=host, token_file="token")


HALF_A_HEAD = b"GET /v1/workers HTTP/1.1\r\nHost: a"
NO_BODY = b"POST /workers HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, NO_BODY], ids=["nothing", "half a head", "no body and no token"])
def test_half_requests_hold_the_port_up_for_seconds_only(
    token_server: Management, monkeypatch: pytest.MonkeyPatch, sent: bytes
):
    monkeypatch.setattr("corosrv.web.management.listener.HEAD_TIME", 0.5)
    monkeypatch.setattr("corosrv.web.management.listener.UNREAD_TIME", 0.1)
    port = token_server.listener.port
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            connection.sendall(sent)

        assert ask(port, Authorization="Bearer secret") == 200


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_token_file_without_a_token_stops_the_start(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "token").write_text(content)
    with short_folder() as folder, managed(pool_card()) as (manager, _):
        settings = ManagementSettings(run_dir=folder, port=0, token_file=str(tmp_path / "token"))

        with pytest.raises(SettingsError, match="COROSRV_MGMT_TOKEN_FILE"):
            ManagementListener(settings, lambda: manager.state, ()).start()
        assert list(Path(folder).iterdir()) == []


def test_a_port_that_is_taken_stops_the_start(token_server: Management, tmp_path: Path):
    with short_folder() as folder:
        settings = ManagementSettings(
            run_dir=folder, port=token_server.listener.port, token_file=str(tmp_path / "token")
        )

        with pytest.raises(SettingsError, match=r"cannot be opened: .*in use"):
            ManagementListener(settings, lambda: token_server.manager.state, ()).start()
        assert list(Path(folder).iterdir()) == []
