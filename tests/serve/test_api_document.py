"""The API's document against the server that it describes: nobody finds a difference, and no answer is a failure."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from corosrv.openai import shapes
from tests.serve.server import BIN, Server, Servers
from tests.serve.wire import chat, events

KEY = "a-key-for-strangers"
LIMIT = 100.0  # seconds


@pytest.fixture(scope="module")
def keyed(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(model="synthetic:?tokens_per_s=0&length=16", ctx=256, slots=8, api_keys=KEY)


def n_passed(told: str) -> int:
    found = re.search(r"(\d+) generated, (\d+) passed", told)
    assert found, told
    return int(found.group(2))


@pytest.mark.slow
def test_strange_requests_find_nothing(keyed: Server, tmp_path: Path) -> None:
    """Schemathesis, with all its checks but one: not all that a body has to be can be said in a schema, and so what
    fits the schema may be refused with 400. `st run URL/openapi.json -n 1000` looks longer."""
    command = [
        str(BIN / "schemathesis"), "run", f"http://127.0.0.1:{keyed.port}/openapi.json",
        "--header", f"Authorization: Bearer {KEY}",
        "--checks", "all", "--exclude-checks", "positive_data_acceptance", "--max-examples", "10", "--seed", "1",
        "--request-timeout", "10", "--report-dir", str(tmp_path), "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)

    assert done.returncode == 0, done.stdout[-8000:]
    assert n_passed(done.stdout) > 500
    assert "Traceback" not in keyed.log
    assert keyed.health() == "ok"


def test_answers_are_what_the_document_says(server: Server) -> None:
    with server.connect() as connection:
        whole = connection.post(chat(max_tokens=2)).body
        text = connection.post({"prompt": "Hi", "max_tokens": 2}, "/v1/completions").body
        listed = connection.ask("GET", "/v1/models").body
        refused = connection.post(chat(temperature=-1)).body

    msgspec.json.decode(whole, type=shapes.ChatCompletion)
    msgspec.json.decode(text, type=shapes.TextCompletion)
    msgspec.json.decode(listed, type=shapes.ModelList)
    msgspec.json.decode(refused, type=shapes.ErrorAnswer)


def test_events_are_what_the_document_says(server: Server) -> None:
    options = {"include_usage": True}
    with server.connect() as connection:
        streamed = events(connection.post(chat(max_tokens=3, stream=True, stream_options=options)).body)

    assert streamed.pop() == "[DONE]"
    for event in streamed:
        msgspec.convert(event, shapes.ChatChunk)
