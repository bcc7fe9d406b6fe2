"""curl, as documentation has it."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.clients.conftest import KEY, Run, says_something
from tests.clients.people import QUESTION
from tests.serve.server import Server

pytestmark = pytest.mark.model

BEARER = f"Authorization: Bearer {KEY}"
CHAT = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12})
STREAM = json.dumps({**json.loads(CHAT), "stream": True})
CURL = shutil.which("curl") or ""


@pytest.fixture(autouse=True)
def _needs_curl() -> None:
    if not CURL:
        pytest.skip("there is no curl")


def test_a_chat_with_a_header_for_its_type(server: Server, run: Run) -> None:
    printed = run(CURL, "-sf", f"{server.url}/chat/completions", "-H", BEARER, "-H", "Content-Type: application/json",
                  "-d", CHAT)  # fmt: skip

    assert says_something(json.loads(printed)["choices"][0]["message"]["content"])


def test_a_chat_without_one(server: Server, run: Run) -> None:
    printed = run(CURL, "-sf", f"{server.url}/chat/completions", "-H", BEARER, "-d", CHAT)

    assert says_something(json.loads(printed)["choices"][0]["message"]["content"])


def test_a_stream_as_it_comes(server: Server, run: Run) -> None:
    printed = run(CURL, "-sfN", f"{server.url}/chat/completions", "-H", BEARER, "-d", STREAM)

    assert printed.endswith("data: [DONE]\n\n")
    assert printed.count("data: ") > 5


def test_a_message_and_a_response(server: Server, run: Run) -> None:
    message = run(CURL, "-sf", f"{server.url}/messages", "-H", f"x-api-key: {KEY}", "-H",
                  "anthropic-version: 2023-06-01", "-d", CHAT)  # fmt: skip
    response = run(
        CURL,
        "-sf",
        f"{server.url}/responses",
        "-H",
        BEARER,
        "-d",
        json.dumps({"input": QUESTION, "max_output_tokens": 12}),
    )

    assert says_something(json.loads(message)["content"][0]["text"])
    assert says_something(json.loads(response)["output"][0]["content"][0]["text"])


def test_models_and_health(server: Server, run: Run) -> None:
    assert json.loads(run(CURL, "-sf", f"{server.url}/models", "-H", BEARER))["data"][0]["id"] == "smollm2"
    assert json.loads(run(CURL, "-sf", f"{server.url.removesuffix('/v1')}/health"))["status"] == "ok"


def test_an_error_has_its_status(server: Server, run: Run) -> None:
    def status(*arguments: str) -> str:
        return run(CURL, "-s", "-o", "/dev/null", "-w", "%{http_code}", *arguments)

    assert status(f"{server.url}/models") == "401"
    assert status(f"{server.url}/nothing", "-H", BEARER) == "404"
    assert status(f"{server.url}/chat/completions", "-H", BEARER, "-d", "{") == "400"
    assert status(f"{server.url}/chat/completions", "-H", BEARER, "-X", "PUT", "-d", CHAT) == "405"


def test_the_way_back_is_open_to_pages(server: Server, run: Run) -> None:
    headers = run(CURL, "-si", "-X", "OPTIONS", f"{server.url}/chat/completions", "-H", "Origin: https://page.example")

    assert "access-control-allow-origin: https://page.example" in headers.lower()
