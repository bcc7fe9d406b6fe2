"""Where a server listens and how: TLS, Unix sockets, gunicorn's own options, and workers that replace others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from corosrv.contracts.settings import add_key
from tests.serve.server import BIN, DEPLOYED, REPOSITORY, SERVE, START_SECONDS, Process, Server, Servers, servers
from tests.serve.wire import CHAT, Answer, Connection, chat, events, request
from tests.support.certificates import self_signed
from tests.support.waiting import eventually

MODEL = "synthetic:?tokens_per_s=50"


@pytest.fixture
def openssl() -> str:
    return shutil.which("openssl") or pytest.skip("there is no openssl")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="corosrv-"))
    yield folder
    shutil.rmtree(folder)


def certificate(folder: Path, openssl: str) -> tuple[str, str]:
    """The paths of a new certificate and its key."""
    folder.mkdir()
    self_signed(folder, openssl)
    return str(folder / "certificate.pem"), str(folder / "key.pem")


def trusting(certfile: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certfile)


class SecureConnection(Connection):
    """A connection of TLS to `localhost`."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._input = self.socket.makefile("rb")


def serve_tls(start: Servers, certfile: str, keyfile: str, **more: object) -> Server:
    server = start.start(*SERVE, "--certfile", certfile, "--keyfile", keyfile, wait_for=None, **more)
    eventually(lambda: "loaded" in server.log, START_SECONDS, "a model")
    return server


def test_chats_streams_and_further_requests_go_through_tls(start: Servers, tmp_path: Path, openssl: str) -> None:
    files = certificate(tmp_path / "one", openssl)
    server = serve_tls(start, *files)
    assert "serves synthetic on https://127.0.0.1:" in server.log

    with SecureConnection(server.port, trusting(files[0])) as connection:
        assert connection.post(chat(max_tokens=3)).status == 200
        streamed = connection.post(chat(max_tokens=30, stream=True))
        assert events(streamed.body)[-1] == "[DONE]"
        assert len(events(streamed.body)) > 20
        assert connection.ask("GET", "/health").status == 200
        connection.send(request("GET", "/v1/models", headers={"Connection": "close"}))
        assert connection.answer().status == 200
        assert connection.socket.recv(1) == b""  # the end that TLS has for it; without it this raises


def test_a_client_that_leaves_is_noticed_under_tls(start: Servers, tmp_path: Path, openssl: str) -> None:
    files = certificate(tmp_path / "one", openssl)
    server = serve_tls(start, *files)
    context = trusting(files[0])

    def shows(sample: bytes) -> bool:
        with SecureConnection(server.port, context) as connection:
            return sample in connection.ask("GET", "/metrics").body

    with SecureConnection(server.port, context) as connection:
        connection.send(request("POST", CHAT, chat(max_tokens=4000)))
        eventually(lambda: shows(b'corosrv_running{model="synthetic"} 1.0'), what="its job runs")

    eventually(lambda: shows(b'{model="synthetic",outcome="cancelled"} 1.0'), what="its job is cancelled")


def is_closed(connection: Connection) -> bool:
    """Waits until the server has closed a connection; False if it says something."""
    try:
        return connection.socket.recv(100) == b""
    except ConnectionResetError:
        return True


def test_who_speaks_no_tls_or_says_nothing_keeps_nobody(start: Servers, tmp_path: Path, openssl: str) -> None:
    files = certificate(tmp_path / "one", openssl)
    server = serve_tls(start, *files, head_timeout_s=1)
    with Connection(server.port) as plain, Connection(server.port) as silent, Connection(server.port) as slow:
        refused = plain.ask("GET", "/health")
        assert (refused.status, b"https://" in refused.body) == (400, True)
        slow.send(b"\x16\x03\x01")  # the beginning of a handshake
        assert all(map(is_closed, (plain, silent, slow)))
        with SecureConnection(server.port, trusting(files[0])) as late:
            late.send(b"GET /health HTTP/1.1\r\nHost: ")
            assert late.answer().status == 408
    with SecureConnection(server.port, trusting(files[0])) as connection:
        assert connection.ask("GET", "/health").status == 200
    assert "Traceback" not in server.log
    assert "did not agree on TLS" in server.log


@pytest.fixture(scope="module")
def secure_three(
    tmp_path_factory: pytest.TempPathFactory, cache: Path
) -> Iterator[tuple[Server, ssl.SSLContext, dict[str, str]]]:
    """Three workers under TLS, what trusts them, and a key's header with which 12 requests a minute may be sent."""
    folder = tmp_path_factory.mktemp("secure")
    files = certificate(folder / "one", shutil.which("openssl") or pytest.skip("there is no openssl"))
    key = add_key(str(folder / "keys.toml"), "limited", {"requests_per_minute": 12})
    with servers(folder, cache) as started:
        server = started.start(
            *SERVE, "--certfile", files[0], "--keyfile", files[1], "-w", "3", wait_for=None, model=MODEL,
            api_keys="free", api_keys_file=folder / "keys.toml",
        )  # fmt: skip
        eventually(lambda: server.log.count("loaded\n") == 3, START_SECONDS, "three workers")
        yield server, trusting(files[0]), {"Authorization": f"Bearer {key}"}


FREE = {"Authorization": "Bearer free"}


def connections(stack: ExitStack, n: int, port: int, context: ssl.SSLContext) -> list[SecureConnection]:
    return [stack.enter_context(SecureConnection(port, context)) for _ in range(n)]


def ask_once(port: int, context: ssl.SSLContext, method: str, path: str, *more: Any) -> Answer:
    """One request on a connection of its own, which any worker may accept."""
    with SecureConnection(port, context) as connection:
        return connection.ask(method, path, *more)


def test_workers_share_state_under_tls(
    secure_three: tuple[Server, ssl.SSLContext, dict[str, str]],
) -> None:
    server, context, limited = secure_three
    body = {"model": "synthetic", "input": "hi", "max_output_tokens": 4}

    kept = ask_once(server.port, context, "POST", "/v1/responses", body, FREE).json["id"]
    found = {ask_once(server.port, context, "GET", f"/v1/responses/{kept}", None, FREE).status for _ in range(9)}
    keyed = FREE | {"Idempotency-Key": "one"}
    ids = {ask_once(server.port, context, "POST", CHAT, chat(max_tokens=2), keyed).json["id"] for _ in range(9)}
    statuses = [ask_once(server.port, context, "POST", CHAT, chat(max_tokens=1), limited).status for _ in range(16)]
    with SecureConnection(server.port, context) as connection:  # whose requests belong to different processes
        of_one = [connection.ask("GET", f"/v1/responses/{kept}", None, FREE).status for _ in range(3)]
        of_one.append(connection.ask("GET", "/v1/models", None, limited).status)
        of_one.append(connection.ask("GET", f"/v1/responses/{kept}", None, FREE).status)
    metrics = ask_once(server.port, context, "GET", "/metrics", None, FREE).body

    assert (found, len(ids), of_one) == ({200}, 1, [200] * 5)
    assert statuses[:12] == [200] * 12
    assert statuses.count(429) >= 1  # one comes back every 5 s
    assert {f'front="{number}"'.encode() in metrics for number in (1, 2, 3)} == {True}


def test_a_large_body_and_a_client_that_leaves_pass_through_the_worker_that_speaks_tls(
    secure_three: tuple[Server, ssl.SSLContext, dict[str, str]],
) -> None:
    server, context, _ = secure_three
    large = chat(max_tokens=1, user="x" * 3_000_000)
    keyed = FREE | {"X-Conversation-Id": "mine"}
    waiting = {"Expect": "100-continue"}

    assert {ask_once(server.port, context, "POST", CHAT, large, keyed).status for _ in range(4)} == {200}
    with SecureConnection(server.port, context) as connection:
        head, _, content = request("POST", CHAT, chat(max_tokens=1), keyed | waiting).partition(b"\r\n\r\n")
        connection.send(head + b"\r\n\r\n")
        assert connection.head().status == 100
        connection.send(content)
        assert connection.answer().status == 200

    def shows(sample: bytes) -> bool:
        return sample in ask_once(server.port, context, "GET", "/metrics", None, FREE).body

    with ExitStack() as stack:
        for connection in connections(stack, 6, server.port, context):
            connection.send(request("POST", CHAT, chat(max_tokens=4000), FREE | {"X-Group-Id": "g"}))
        eventually(lambda: shows(b'corosrv_running{model="synthetic"} 6.0'), what="their jobs run")
    eventually(lambda: shows(b'corosrv_running{model="synthetic"} 0.0'), 10, what="their jobs are cancelled")
    assert "Traceback" not in server.log


def test_workers_under_tls_that_are_replaced_let_streams_of_others_clients_end(
    start: Servers, tmp_path: Path, openssl: str
) -> None:
    files = certificate(tmp_path / "one", openssl)
    server = start.start(
        *SERVE, "--certfile", files[0], "--keyfile", files[1], "-w", "3", wait_for=None, model=MODEL,
        drain_s=60,
    )  # fmt: skip
    eventually(lambda: server.log.count("loaded\n") == 3, START_SECONDS, "three workers")
    context = trusting(files[0])
    kept = {"X-Group-Id": "g"}  # of one process: two of three connections are relayed
    with ExitStack() as stack:
        idle, busy = (connections(stack, 9, server.port, context) for _ in range(2))
        for connection in idle:
            assert connection.ask("POST", CHAT, chat(max_tokens=1), kept).status == 200
        for connection in busy:
            connection.send(request("POST", CHAT, chat(stream=True, max_tokens=400), kept))
            assert connection.head().status == 200

        # Not the one with the fewest connections: so the idle ones are not all of the worker that stays.
        leaving = sorted(server.workers(), key=lambda pid: Process(pid).n_descriptors())[1:]
        for pid in leaving:
            os.kill(pid, signal.SIGTERM)
        last = [events(b"".join(connection.pieces()))[-1] for connection in busy]
        eventually(lambda: not {*leaving} & {*server.workers()}, 30, what="their end")  # the idle ones do not keep them

        assert last == ["[DONE]"] * 9
        assert sum(connection.has_input(0.1) for connection in idle) >= 1
    assert "Traceback" not in server.log


def serves(port: int, certfile: str) -> bool:
    """Whether a server shows this certificate."""
    try:
        with SecureConnection(port, trusting(certfile)) as connection:
            return connection.ask("GET", "/health").status == 200
    except ssl.SSLCertVerificationError:
        return False


def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(start: Servers, tmp_path: Path, openssl: str) -> None:
    first, second = (certificate(tmp_path / name, openssl) for name in ("first", "second"))
    shown = tuple(str(tmp_path / Path(path).name) for path in first)
    for source, target in zip(first, shown, strict=True):
        shutil.copy(source, target)
    server = serve_tls(start, *shown)
    with SecureConnection(server.port, trusting(first[0])) as kept:
        assert kept.ask("GET", "/health").status == 200

        shutil.copy(second[0], shown[0])  # without its key
        eventually(lambda: "the key is not that of the certificate" in server.log, what="a complaint")
        assert serves(server.port, first[0])
        shutil.copy(second[1], shown[1])
        eventually(lambda: serves(server.port, second[0]), what="the new certificate")

        assert kept.ask("GET", "/health").status == 200
    server.signal(signal.SIGHUP)
    eventually(lambda: server.log.count("model synthetic: loaded") == 2, START_SECONDS, "another worker")
    assert serves(server.port, second[0])


def refusal(*options: str) -> str:
    """What `corosrv serve` says when it does not start."""
    ended = subprocess.run(
        [str(BIN / "corosrv"), "serve", "--port", "0", "--model", MODEL, *options],
        capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_certificates_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path, openssl: str) -> None:
    first, second = (certificate(tmp_path / name, openssl) for name in ("first", "second"))
    (tmp_path / "empty").write_text("")

    assert "the key is not that of the certificate" in refusal("--certfile", first[0], "--keyfile", second[1])
    assert "cannot be read: No such file" in refusal("--certfile", str(tmp_path / "none.pem"))
    assert "hold no certificate" in refusal("--certfile", str(tmp_path / "empty"))
    assert "add --certfile" in refusal("--keyfile", first[1])


class LocalConnection(Connection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(path))
        self._input = self.socket.makefile("rb")


@pytest.mark.parametrize("form", ["unix:{}", "{}"])
def test_a_unix_socket_serves_beside_a_port(start: Servers, short: Path, form: str) -> None:
    path = short / "corosrv.sock"
    server = start.start(*SERVE, "--host", f"127.0.0.1,{form.format(path)}")

    with LocalConnection(path) as connection:
        assert connection.post(chat(max_tokens=3)).status == 200
        assert events(connection.post(chat(max_tokens=3, stream=True)).body)[-1] == "[DONE]"
    assert server.get("/health")[0] == 200
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not path.exists()


def test_options_of_gunicorn_stand_behind_two_dashes_or_in_its_variable(start: Servers) -> None:
    server = start.start(
        *SERVE, "--", "--access-logfile", "-", "--access-logformat", "seen %(m)s %(U)s",
        GUNICORN_CMD_ARGS="--limit-request-fields 7 --access-logformat lost --workers 3",
    )  # fmt: skip

    with server.connect() as connection:
        crowded = connection.ask("GET", "/health", headers={f"X-{n}": "1" for n in range(8)})
    assert crowded.status == 431
    assert server.get("/v1/models")[0] == 200
    eventually(lambda: "seen GET /v1/models" in server.log, what="a line of the access log")
    assert "lost" not in server.log
    assert "in GUNICORN_CMD_ARGS is not used: use --workers" in server.log
    assert len(server.workers()) == 1


def test_options_of_gunicorn_that_have_another_name_here_are_refused() -> None:
    assert "use --host and --port" in refusal("--", "--bind", "0.0.0.0:80")
    assert "use --workers" in refusal("--", "--workers", "3")
    assert "'myapp:app' is none" in refusal("--", "myapp:app")


class Callers(threading.Thread):
    """Asks without a pause, on a new connection each, until it is stopped; keeps what was not answered by 200."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._port = server.port
        self.is_stopped = False
        self.n_answers = 0
        self.failures: list[str] = []
        self.slowest = 0.0
        self.start()

    def run(self) -> None:
        while not self.is_stopped:
            began = time.monotonic()
            connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
            try:
                connection.request("POST", CHAT, json.dumps(chat(max_tokens=10)))
                answer = connection.getresponse()
                text = answer.read().decode()
                self.n_answers += 1
                if answer.status != 200:
                    self.failures.append(text)
            except (OSError, HTTPException) as error:
                self.failures.append(repr(error))
            finally:
                connection.close()
            self.slowest = max(self.slowest, time.monotonic() - began)

    def stop(self) -> None:
        self.is_stopped = True
        self.join()


@pytest.mark.parametrize("command", [SERVE, DEPLOYED], ids=["serve", "deployed"])
def test_workers_are_replaced_without_a_gap(start: Servers, command: tuple[str, ...]) -> None:
    server = start.start(*command, model=MODEL)
    before = set(server.workers())
    callers = [Callers(server) for _ in range(3)]
    try:
        for n in (2, 3):
            server.signal(signal.SIGHUP)
            eventually(lambda n=n: server.log.count("model synthetic: loaded") == n, START_SECONDS, "another worker")
            eventually(lambda old=before: not old & set(server.workers()), what="the end of the old one")
            before = set(server.workers())
            n_before = callers[0].n_answers
            eventually(lambda n=n_before: callers[0].n_answers > n + 1, what="answers of the new one")
    finally:
        for caller in callers:
            caller.stop()

    assert [caller.failures for caller in callers] == [[], [], []]
    assert min(caller.n_answers for caller in callers) > 5


def told_to(systemd: socket.socket) -> list[str]:
    """Returns the first line of each message that services have sent."""
    systemd.setblocking(False)
    told = []
    with suppress(BlockingIOError):
        while True:
            told.append(systemd.recv(4096).decode().splitlines()[0])
    return told


@pytest.mark.parametrize("command", [SERVE, DEPLOYED], ids=["serve", "deployed"])
def test_another_master_takes_over_without_a_gap(start: Servers, command: tuple[str, ...], short: Path) -> None:
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(str(short / "notify"))
    server = start.start(*command, model=MODEL, NOTIFY_SOCKET=short / "notify")
    old = server.workers()
    callers = [Callers(server) for _ in range(3)]
    with server.connect() as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=400)))
        assert connection.head().status == 200
        server.signal(signal.SIGUSR2)
        eventually(lambda: set(server.workers()) - set(old), START_SECONDS, "another master")
        (pid,) = set(server.workers()) - set(old)
        new = Process(pid)
        try:
            eventually(lambda: server.log.count("model synthetic: loaded") == 2, START_SECONDS, "its worker")
            server.signal(signal.SIGTERM)
            assert events(b"".join(connection.pieces()))[-1] == "[DONE]"
            assert server.wait() == 0
            n_before = callers[0].n_answers
            eventually(lambda: callers[0].n_answers > n_before + 1, what="answers of the new one")
            assert told_to(systemd) == ["READY=1", "READY=1", f"MAINPID={pid}"]
        finally:
            systemd.close()
            for caller in callers:
                caller.stop()
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: not new.is_alive, what="the end of the new master")

    assert [caller.failures for caller in callers] == [[], [], []]


def test_workers_that_cannot_start_replace_nobody(start: Servers, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("slots = 2\n")
    server = start.start(*SERVE, "--config", str(settings))
    before = server.workers()
    with server.connect() as connection:
        connection.send(request("POST", CHAT, chat(stream=True, max_tokens=100)))
        assert connection.head().status == 200

        settings.write_text("slots = -2\n")
        server.signal(signal.SIGHUP)
        eventually(lambda: "the old ones serve on" in server.log, START_SECONDS, "the failure of new workers")

        assert events(b"".join(connection.pieces()))[-1] == "[DONE]"
    assert server.workers() == before
    assert server.get("/health")[1]["status"] == "ok"
    settings.write_text("slots = 3\n")
    server.signal(signal.SIGHUP)
    eventually(lambda: not set(before) & set(server.workers()), START_SECONDS, "workers with the mended settings")
    assert server.metric("slots") == 3


def test_a_stop_while_workers_are_replaced_ends_the_server(start: Servers) -> None:
    server = start.start(*SERVE)
    server.signal(signal.SIGHUP)
    eventually(lambda: "Hang up: Master" in server.log, what="the reload")
    server.signal(signal.SIGTERM)

    assert server.wait(START_SECONDS) == 0
