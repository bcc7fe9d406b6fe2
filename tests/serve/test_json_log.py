"""The log: every line as JSON, and a line for each request, where they are asked for."""

from __future__ import annotations

import json
import signal
import tempfile

import pytest

from tests.serve.server import SERVE, Servers
from tests.serve.wire import chat


@pytest.mark.parametrize("engine", ["inproc", "process"])
def test_every_line_of_log_is_json(start: Servers, engine: str) -> None:
    with tempfile.TemporaryDirectory(prefix="log-") as run_dir:  # short enough for a socket's path
        server = start.start(
            *SERVE, "--log-format", "json", log_level="debug", slot="2", engine=engine, run_dir=run_dir
        )
        with server.connect() as client:
            assert client.post(chat(max_tokens=1)).status == 200

        server.signal(signal.SIGTERM)

        assert server.wait() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    messages = [line["message"] for line in lines if "message" in line]
    assert any(message.startswith("engine ready in") for message in messages)
    assert any(message.startswith("Listening at") for message in messages)
    assert any(message.startswith("unknown setting ignored: COROSRV_SLOT ") for message in messages)
    assert any(line.get("event") == "job_ended" and line["outcome"] == "length" for line in lines)
    assert any(message.startswith("Worker exiting") for message in messages)
    assert all({"time", "level", "pid", "logger"} <= line.keys() for line in lines)


def test_requests_are_logged_where_that_is_asked_for(start: Servers) -> None:
    asked, plain = (start.start(*SERVE, access_log=is_on) for is_on in (1, 0))
    for server in (asked, plain):
        with server.connect() as client:
            assert client.post(chat(max_tokens=1)).status == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0

    assert " POST /v1/chat/completions 200 " in asked.log
    assert "/v1/chat/completions" not in plain.log
