"""Lines of the access log: their members, how answers end, and that clients cannot write lines of their own."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest

from tests.serve.server import APP, SERVE, Server, Servers
from tests.serve.wire import CHAT, chat, request
from tests.support.waiting import eventually

KEY = {"Authorization": "Bearer sk-of-ann"}
KEYS = f'[[keys]]\nname = "ann smith"\nhash = "{hashlib.sha256(b"sk-of-ann").hexdigest()}"\n'


@pytest.fixture(scope="module")
def logged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server under plain gunicorn, which asks for keys, fifty tokens a second."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o600)
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(*APP, access_log="json", api_keys_file=file)


def lines(server: Server, id: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [line for line in found if line["id"] == id]


def line_of(server: Server, id: str) -> dict[str, Any]:
    (line,) = eventually(lambda: lines(server, id), what=f"the line of {id}\n{server.log}")
    return line


def ask(server: Server, id: str, path: str = CHAT, **fields: Any) -> bytes:
    with server.connect() as client:
        return client.post(chat(**fields), path, KEY | {"X-Request-Id": id}).body


def is_running(server: Server) -> bool:
    with server.connect() as client:
        return b'corosrv_running{model="synthetic"} 1.0' in client.ask("GET", "/metrics", headers=KEY).body


def test_a_line_tells_of_the_request_its_answer_and_the_name_of_its_key(logged: Server) -> None:
    body = ask(logged, "whole", f"{CHAT}?api_key=secret&a=1", max_tokens=2)

    line = line_of(logged, "whole")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line.pop("ms") >= 20
    assert line == {
        "event": "request_ended",
        "client": "127.0.0.1",
        "method": "POST",
        "path": f"{CHAT}?api_key=***&a=1",
        "status": 200,
        "bytes": len(body),
        "end": "complete",
        "id": "whole",
        "key": "ann smith",
        "model": "synthetic",
    }
    assert "sk-of-ann" not in logged.log


def test_the_line_of_a_stream_comes_at_its_end_with_all_its_bytes(logged: Server) -> None:
    body = ask(logged, "stream", max_tokens=10, stream=True)

    line = line_of(logged, "stream")
    assert (line["bytes"], line["end"], line["model"]) == (len(body), "complete", "synthetic")
    assert line["ms"] >= 150


def test_a_client_that_leaves_a_stream_or_an_answer_is_told_apart(logged: Server) -> None:
    for id, streams in (("left-stream", True), ("left-answer", False)):
        with logged.connect() as client:
            body = chat(max_tokens=4000, stream=streams, ignore_eos=True)
            client.send(request("POST", CHAT, body, KEY | {"X-Request-Id": id}))
            eventually(lambda: is_running(logged), what="a running answer")
            client.leave()

        assert line_of(logged, id)["end"] == "client_gone"


def test_a_stream_that_ends_in_an_error_says_so(logged: Server) -> None:
    with logged.connect() as client:
        headers = KEY | {"X-Request-Id": "late", "X-Request-Timeout-Ms": "1500"}
        client.post(chat(max_tokens=4000, stream=True, ignore_eos=True), CHAT, headers)

    line = line_of(logged, "late")
    assert (line["status"], line["end"]) == (200, "error")


def test_refused_requests_have_lines_and_no_key(logged: Server) -> None:
    with logged.connect() as client:
        client.post(chat(), CHAT, {"X-Request-Id": "refused"})

    line = line_of(logged, "refused")
    assert (line["status"], line.get("key"), line["end"]) == (401, None, "complete")


def test_text_is_one_readable_line_and_clients_write_none_of_their_own(start: Servers) -> None:
    server = start.start(*SERVE, "--access-log", log_level="warning")
    send_hostile_paths(server)
    with server.connect() as client:
        client.post(chat(max_tokens=1), CHAT, {"X-Request-Id": "readable"})

    line = eventually(lambda: re.search("^.*id=readable.*$", server.log, re.MULTILINE), what=server.log)
    form = rf"\S+Z 127\.0\.0\.1 POST {CHAT} 200 \d+ B [\d.]+ ms complete id=readable model=synthetic"
    assert re.fullmatch(form, line.group())
    hostile = [line for line in server.log.splitlines() if " 404 " in line]
    assert len(hostile) == 2
    assert all(line.isprintable() and len(line) < 1500 for line in hostile)
    assert not re.search(r"\x1b|^GET|^line", server.log, re.MULTILINE)


def test_clients_write_no_json_of_their_own(logged: Server) -> None:
    send_hostile_paths(logged)
    ask(logged, "behind-them", max_tokens=1)
    line_of(logged, "behind-them")

    hostile = [line for line in logged.log.splitlines() if '"status":401' in line and '"GET"' in line]
    assert len(hostile) == 2
    assert all(line.isascii() and json.loads(line)["event"] == "request_ended" for line in hostile)


def send_hostile_paths(server: Server) -> None:
    # Raw control characters are no request for gunicorn, and get no line.
    for path in (b"/%0aGET%20/forged", b"/\x1b[31mred", b"/\xe2\x80\xa8line", b"/" + 3000 * b"a"):
        with server.connect() as client:
            client.send(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            client.answer()
