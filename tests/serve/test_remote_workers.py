"""Workers that join over TCP, as from another machine: a real front, real workers, and a proxy that can fail."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corosrv.web.management.client import RemoteClient
from corosrv.web.management.worker_routes import JOIN, REMOTE_PROTOCOL
from tests.serve.joined_worker import PATIENCE, JoinedWorker, joined_worker
from tests.serve.server import REPOSITORY, Process, Server, Servers, free_port, servers
from tests.support.certificates import self_signed
from tests.support.waiting import eventually
from tests.web.management.serving import short_folder

APP = f"{REPOSITORY}/tests/serve/remote_app.py:app"
TOKEN = "a token of sixteen characters or more"


class Front:
    """A server that workers join over TCP, and what tells them how."""

    def __init__(self, start: Servers, folder: Path, run_dir: str, **settings: Any) -> None:
        self.folder = folder
        self.token = folder / "token"
        self.token.write_text(TOKEN)
        options = {"model": "", "joinable": 1, "run_dir": run_dir, "mgmt_port": 0, "mgmt_token_file": self.token}
        self.server: Server = start.start(**options | settings)
        self.url = self._url()

    def _url(self) -> str:
        found = eventually(
            lambda: re.search(r"management on (https?)://[\d.]+:(\d+)", self.server.log), PATIENCE, "a port"
        )
        return f"{found[1]}://{'localhost' if found[1] == 'https' else '127.0.0.1'}:{found[2]}"

    def words(self, *more: str, app: str = APP, url: str = "") -> tuple[str, ...]:
        """Returns the words of `corosrv worker` behind that."""
        return (app, "--join", url or self.url, "--token-file", str(self.token), *more)

    def call(self, model: str, inputs: Any = (), **parameters: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        try:
            body = json.dumps({"inputs": list(inputs), "parameters": parameters})
            connection.request("POST", f"/v2/models/{model}/infer", body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def data(self, model: str, inputs: Any = (), **parameters: Any) -> list[Any]:
        status, body = self.call(model, inputs, **parameters)
        assert status == 200, body
        return list(body["outputs"][0]["data"])

    def pid(self) -> int:
        """Calls until a worker answers, and returns its pid."""
        eventually(lambda: self.call("where")[0] == 200, PATIENCE, f"an answer\n{self.server.log}")
        return int(self.data("where")[0])

    def count(self, words: str) -> int:
        return self.server.log.count(words)

    def n_ready(self) -> int:
        """Counts the workers that have joined and are ready."""
        shown = RemoteClient(self.url, TOKEN).call("GET", "/v1/workers")["workers"]
        return sum(worker["pool"] == "joined" and worker["state"] == "ready" for worker in shown)


@pytest.fixture(scope="module")
def front(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("remote")
    with short_folder() as run_dir, servers(folder, cache) as start:
        front = Front(start, folder, run_dir)
        n_before = front.server.worker.n_descriptors()
        yield front
        eventually(lambda: front.server.worker.n_descriptors() <= n_before, PATIENCE, "all descriptors are closed")


class Proxy:
    """Carries bytes between a worker and its front, until it is told to stand still or to hang up."""

    def __init__(self, url: str) -> None:
        host, port = url.rpartition("/")[2].split(":")
        self._to = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._to)
            self._open += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        self._hang_up(source, sink)

    def _hang_up(self, *socks: socket.socket) -> None:
        for sock in socks:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def cut(self) -> None:
        self._hang_up(*self._open)

    def close(self) -> None:
        self._listener.close()
        self.cut()


@pytest.fixture(scope="module")
def proxy(front: Front) -> Iterator[Proxy]:
    proxy = Proxy(front.url)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def worker(front: Front, proxy: Proxy) -> Iterator[JoinedWorker]:
    with joined_worker(front.folder, *front.words(url=proxy.url)) as joined:
        assert front.pid() == joined.worker
        yield joined


def uint8(data: bytes) -> dict[str, Any]:
    return {"name": "x", "datatype": "UINT8", "shape": [len(data)], "data": list(data)}


def mirrored(front: Front, content: bytes) -> bytes:
    """Sends bytes to `mirror` as binary data, and returns what comes back."""
    size = {"binary_data_size": len(content)}
    tensor = {"name": "x", "datatype": "UINT8", "shape": [len(content)], "parameters": size}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "x", "parameters": {"binary_data": True}}]}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", front.server.port, timeout=PATIENCE)
    try:
        headers = {"Inference-Header-Content-Length": str(len(head))}
        connection.request("POST", "/v2/models/mirror/infer", head + content, headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body[:500]
        return body[int(answer.headers["Inference-Header-Content-Length"]) :]
    finally:
        connection.close()


@pytest.mark.parametrize("n_bytes", [10, 3_000_000, 30_000_000])
def test_values_of_every_size_come_back_as_they_were_sent(front: Front, worker: JoinedWorker, n_bytes: int):
    content = os.urandom(1 << 16) * (n_bytes // (1 << 16) + 1)

    assert mirrored(front, content[:n_bytes]) == content[:n_bytes]


def test_large_calls_beside_each_other_do_not_keep_a_small_one_waiting_for_ever(front: Front, worker: JoinedWorker):
    content = os.urandom(1 << 20) * 8
    with ThreadPoolExecutor(4) as threads:
        large = [threads.submit(mirrored, front, content) for _ in range(6)]

        assert front.pid() == worker.worker
        assert [call.result(PATIENCE) == content for call in large] == [True] * 6


def test_a_stream_comes_whole_and_in_order(front: Front, worker: JoinedWorker):
    connection = http.client.HTTPConnection("127.0.0.1", front.server.port, timeout=PATIENCE)
    connection.request("POST", "/v2/models/counts/generate_stream", json.dumps({"text_input": "500"}))
    events = [json.loads(line[6:]) for line in connection.getresponse() if line.startswith(b"data: {")]
    connection.close()

    assert [event["text_output"] for event in events] == [*(f"{number} " for number in range(500)), ""]


def test_calls_that_come_together_are_a_batch(front: Front, worker: JoinedWorker):
    sizes = []
    for _ in range(10):  # on a busy machine four calls may come one after the other
        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(front.data, "together", [uint8(bytes([number]))]) for number in range(4)]
        answers = [call.result(PATIENCE) for call in calls]
        assert [answer[1] for answer in answers] == [0, 1, 2, 3]
        sizes.append(max(answer[0] for answer in answers))
        if sizes[-1] > 1:
            break

    assert sizes[-1] > 1, sizes


def test_objects_by_reference_go_over_the_same_connection(front: Front, worker: JoinedWorker):
    expected = hashlib.sha256(bytes(range(256)) * (3 << 12)).hexdigest()

    assert front.data("keeps") == [expected]


def test_a_cancel_and_a_deadline_reach_the_handler(front: Front, worker: JoinedWorker):
    n_before = front.count("nap is over")

    assert front.call("nap", seconds=600, timeout=500_000)[0] == 504

    eventually(lambda: front.count("nap is over") == n_before + 1, PATIENCE, "the deadline was told")
    n_naps = front.count("napping")
    connection = http.client.HTTPConnection("127.0.0.1", front.server.port, timeout=PATIENCE)
    connection.request("POST", "/v2/models/nap/infer", json.dumps({"inputs": [], "parameters": {"seconds": 600}}))
    eventually(lambda: front.count("napping") > n_naps, PATIENCE, "the call runs")
    connection.close()
    eventually(lambda: front.count("nap is over") == n_before + 2, PATIENCE, "the cancel was told")


def test_a_killed_worker_answers_its_call_and_another_takes_its_place(front: Front, worker: JoinedWorker):
    with ThreadPoolExecutor() as threads:
        n_naps = front.count("napping")
        running = threads.submit(front.call, "nap", seconds=600)
        eventually(lambda: front.count("napping") > n_naps, PATIENCE, "the call runs")
        first = worker.worker

        os.kill(first, signal.SIGKILL)

        assert running.result(PATIENCE)[0] == 502
        assert front.pid() == worker.worker != first


def test_a_worker_that_is_told_to_end_answers_its_call_first(front: Front, tmp_path: Path, worker: JoinedWorker):
    with joined_worker(tmp_path, *front.words()) as second, ThreadPoolExecutor(12) as threads:
        eventually(lambda: front.n_ready() == 2, PATIENCE, f"it joins\n{second.log}")
        n_naps = front.count("napping")
        calls = [threads.submit(front.call, "nap", seconds=1.0) for _ in range(4)]
        eventually(lambda: front.count("napping") > n_naps + 2, PATIENCE, "both workers run calls")

        second.signal(signal.SIGTERM)

        assert second.wait() == 0
        assert [call.result(PATIENCE)[0] for call in calls] == [200] * 4


def refusal(folder: Path, *words: str) -> str:
    """Returns what a worker says that ends because it may not join."""
    with joined_worker(folder, *words) as joined:
        assert joined.wait() == 1
        return joined.log


def test_a_wrong_token_ends_the_worker_with_a_clear_word(front: Front, tmp_path: Path):
    (wrong := tmp_path / "wrong").write_text("another token")

    assert "needs the token of its COROSRV_MGMT_TOKEN_FILE" in refusal(
        tmp_path, APP, "--join", front.url, "--token-file", str(wrong)
    )
    assert "takes the server's token" in refusal(tmp_path, APP, "--join", front.url)


def ask(front: Front, target: str = f"{JOIN}?app=a:b", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(front.url.removeprefix("http://"), timeout=PATIENCE)
    try:
        connection.request("POST", target, headers={"Authorization": f"Bearer {TOKEN}"} | headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["error"]
    finally:
        connection.close()


def test_another_version_is_refused_in_words(front: Front):
    upgrade = {"Connection": "Upgrade", "Upgrade": "corosrv-lanes/9"}

    status, words = ask(front, **upgrade)

    assert status == 400
    assert "this server speaks corosrv-lanes/1 here, and not 'corosrv-lanes/9'" in words
    assert ask(front, f"{JOIN}?app=a:b&pid=x", **upgrade | {"Upgrade": REMOTE_PROTOCOL})[1].startswith("pid must be")


def joined_socket(front: Front) -> socket.socket:
    """Joins by hand and returns the connection, of which nothing but the head was read."""
    host, port = front.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), PATIENCE)
    sock.sendall(
        f"POST {JOIN}?app=a:b&pid=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Connection: Upgrade\r\nUpgrade: {REMOTE_PROTOCOL}\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    assert head.startswith(b"HTTP/1.1 101 ")
    return sock


def test_a_peer_that_breaks_the_protocol_is_hung_up_on(front: Front):
    with joined_socket(front) as sock:
        sock.sendall(b"\x00\x00\x00\xff\xff\xff\xff oversize")

        while sock.recv(65536):
            pass

    eventually(
        lambda: "the connection of a worker is given up: a piece of the kind 0" in front.server.log, PATIENCE, "a word"
    )


def test_a_head_that_does_not_come_ends_the_connection(front: Front):
    host, port = front.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as sock:
        sock.sendall(b"POST /v1/workers/join HTTP/1.1\r\n")

        assert sock.recv(100) in (b"", b"HTTP/1.1 408 Request Timeout")


def test_calls_of_a_connection_that_is_cut_are_repeated_elsewhere_if_they_may(
    front: Front, proxy: Proxy, worker: JoinedWorker, tmp_path: Path
):
    before = Process(front.pid())
    n_naps, n_tries = front.count("napping"), front.count("trying")
    with joined_worker(tmp_path, *front.words()), ThreadPoolExecutor() as threads:
        once = threads.submit(front.call, "nap", seconds=600)
        twice = threads.submit(front.data, "again")
        eventually(lambda: front.count("napping") > n_naps and front.count("trying") > n_tries, PATIENCE, "calls run")
        eventually(lambda: front.n_ready() == 2, PATIENCE, "there is another worker")

        proxy.cut()

        assert once.result(PATIENCE)[0] == 502
        assert twice.result(PATIENCE) != [before.pid]
        eventually(lambda: not before.is_alive, PATIENCE, "the worker process has ended")
        eventually(lambda: front.n_ready() == 2, PATIENCE, f"it joins again\n{worker.log}")


def test_an_application_of_another_name_or_with_other_handlers_is_refused(start: Servers, tmp_path: Path):
    with short_folder() as run_dir:
        front = Front(start, tmp_path, run_dir, worker_app=APP)
        front.pid()
        changed = tmp_path / "remote_app.py"
        changed.write_text((REPOSITORY / "tests/serve/remote_app.py").read_text().replace('"mirror"', '"mirror_2"'))

        assert "this server runs the application remote_app.py:app, and not remote_app.py:other" in refusal(
            tmp_path, *front.words(app=APP.removesuffix("app") + "other")
        )
        words = refusal(tmp_path, *front.words(app=f"{changed}:app"))
        assert "mirror_2" in words
        assert "run the same version of the application here and there" in words
        with joined_worker(tmp_path, *front.words()) as joined:
            eventually(lambda: front.n_ready() == 1, PATIENCE, f"it serves beside the server's\n{joined.log}")


@pytest.fixture(scope="module")
def openssl() -> str:
    return shutil.which("openssl") or pytest.skip("there is no openssl")


def test_over_tls_the_server_is_verified_and_a_new_one_is_joined_again(start: Servers, tmp_path: Path, openssl: str):
    (folder := tmp_path / "tls").mkdir()
    _, certificate = self_signed(folder, openssl)
    tls = {"mgmt_certfile": certificate, "mgmt_keyfile": folder / "key.pem"}
    with short_folder() as run_dir:
        port = free_port()  # which nobody else is given while no server has it
        front = Front(start, tmp_path, run_dir, **tls | {"mgmt_port": port})
        assert "cannot be verified: self-signed certificate; name its authority with --ca-file" in refusal(
            tmp_path, *front.words()
        )
        with joined_worker(tmp_path, *front.words("--ca-file", str(certificate))) as joined:
            content = os.urandom(1 << 20) * 5
            assert front.pid() == joined.worker
            assert mirrored(front, content) == content
            before = Process(joined.worker)

            front.server.stop()

            eventually(lambda: not before.is_alive, PATIENCE, "the worker ends with its server")
            again = Front(start, tmp_path, run_dir, **tls | {"mgmt_port": port})
            assert again.pid() == joined.worker != before.pid

            joined.signal(signal.SIGTERM)
            assert joined.wait() == 0
        seen = ssl.get_server_certificate(("127.0.0.1", port), timeout=PATIENCE)
        self_signed(folder, openssl)
        assert ssl.get_server_certificate(("127.0.0.1", port), timeout=PATIENCE) != seen
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert not plain.recv(100).startswith(b"HTTP")
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as silent:
            assert silent.recv(100) == b""  # a client that does not begin to speak TLS
