"""The API's document against the server that it describes: nobody finds a difference, and no answer is a failure."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corosrv.dialects.anthropic import answers as message_types
from corosrv.dialects.generation.native import NativeCompletion
from corosrv.dialects.llamacpp import answers as native_types
from corosrv.dialects.llamacpp import loading
from corosrv.dialects.openai import answer_types
from corosrv.dialects.openai.responses import answer_types as response_types
from tests.serve.server import BIN, Server, Servers
from tests.serve.wire import chat

KEY = "a-key-for-strangers"
LIMIT = 270.0  # seconds: three times as many as it takes where much else runs
CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture(scope="module")
def keyed(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(model="synthetic:?tokens_per_s=0&length=16", ctx=256, slots=8, api_keys=KEY)


def other_names(server: Server) -> list[str]:
    """Paths behind which stands a view that another path has as well."""
    with server.connect() as connection:
        document = connection.ask("GET", "/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json
    return [path for path, verbs in document["paths"].items() if all("x-alias-of" in said for said in verbs.values())]


def n_passed(told: str) -> int:
    found = re.search(r"(\d+) generated, (\d+) passed", told)
    assert found, told
    return int(found.group(2))


@pytest.mark.slow
def test_strange_requests_find_nothing(keyed: Server, tmp_path: Path) -> None:
    """Schemathesis with all its checks but one: not all that a body has to be can be said in a schema, and so what
    fits the schema may still be refused with 400. `--phases examples,coverage,fuzzing -n 100` takes minutes."""
    command = [
        str(BIN / "schemathesis"), "--config-file", str(CONFIG), "run", f"http://127.0.0.1:{keyed.port}/openapi.json",
        "--header", f"Authorization: Bearer {KEY}", "--checks", "all",
        "--exclude-checks", "positive_data_acceptance", "--phases", "examples,fuzzing",
        "--max-examples", "5", "--seed", "1", "--request-timeout", "20", "--report-dir", str(tmp_path), "--no-color",
        *(option for path in other_names(keyed) for option in ("--exclude-path", path)),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)

    assert done.returncode == 0, done.stdout[-8000:]
    assert n_passed(done.stdout) > 100
    assert "Traceback" not in keyed.log
    assert keyed.health() == "ok"


INPUT = {"input": "Hi", "max_output_tokens": 3}
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        ("/v1/chat/completions", chat(max_tokens=2), answer_types.ChatCompletion),
        ("/v1/chat/completions", chat(temperature=-1), answer_types.ErrorAnswer),
        ("/v1/chat/completions/input_tokens", chat(), answer_types.InputTokens),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}, answer_types.TextCompletion),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "logprobs": 2}, answer_types.TextCompletion),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "n_probs": 2}, answer_types.TextCompletion),
        ("/v1/responses", INPUT, response_types.ResponseObject),
        ("/v1/responses/input_tokens", INPUT, answer_types.InputTokens),
        ("/v1/responses", {"input": 5}, answer_types.ErrorAnswer),
        ("/v1/messages", MESSAGES, message_types.AnthropicMessage),
        ("/v1/messages/count_tokens", MESSAGES, message_types.TokenCount),
        ("/v1/messages", {"messages": "x"}, message_types.MessagesError),
        ("/completion", {"prompt": "Hi", "n_predict": 2}, NativeCompletion),
        ("/tokenize", {"content": "Hi"}, native_types.TokenList),
        ("/detokenize", {"tokens": [72]}, native_types.Content),
        ("/apply-template", chat(), native_types.PromptText),
        ("/props", None, native_types.ServerProperties),
        ("/slots", None, list[native_types.SlotDescription]),
        ("/lora-adapters", None, list[native_types.ListedAdapter]),
        ("/models/load", {"model": "synthetic"}, loading.Success),
        ("/v1/models", None, answer_types.ModelList),
        ("/v1/models/synthetic", None, answer_types.ListedModel),
    ],
)
def test_answers_are_what_the_document_says(server: Server, path: str, body: Any, shape: Any) -> None:
    with server.connect() as connection:
        answer = connection.ask("GET" if body is None else "POST", path, body)

    # What the model or its engine is not able to, it says.
    msgspec.json.decode(answer.body, type=answer_types.ErrorAnswer if answer.status == 501 else shape)


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        ("/v1/chat/completions", chat(max_tokens=3, stream_options={"include_usage": True}), answer_types.ChatChunk),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 3}, answer_types.TextCompletion),
        ("/v1/responses", INPUT, response_types.ResponseEvent),
        ("/v1/messages", MESSAGES, message_types.MessagesEvent),
        ("/completion", {"prompt": "Hi", "n_predict": 3}, NativeCompletion),
    ],
)
def test_events_are_what_the_document_says(server: Server, path: str, body: Any, shape: Any) -> None:
    with server.connect() as connection:
        streamed = connection.post({**body, "stream": True}, path).body

    found = re.findall(rb"^data: (.*)$", streamed, re.MULTILINE)
    events = [data for data in found if data != b"[DONE]"]
    assert len(events) >= 3
    for event in events:
        msgspec.json.decode(event, type=shape)
