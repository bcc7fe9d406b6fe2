"""Tests of tests/serve/own_app.py: an app with keys, error pages and hooks of its own, under three web servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import pytest
from flask import Flask

import corosrv
from corosrv.app import _is_served_by_flask_elsewhere
from corosrv.base.errors import SettingsError
from tests.serve.server import GUNICORN, START_SECONDS, Server, Servers
from tests.serve.wire import chat, events, text_of
from tests.support.waiting import eventually

APP = "tests.serve.own_app:app"
COMMANDS = {
    "gevent": (*GUNICORN, "-b", "127.0.0.1:0", APP),
    "sync": ("gunicorn", "--no-control-socket", "-b", "127.0.0.1:0", APP),
    "flask": ("flask", "--app", APP, "run", "--port", "0"),
}
CHAT = "/api/llm/v1/chat/completions"
VISITOR = {"X-Visitor": "ann"}


@pytest.fixture(scope="module", params=COMMANDS)
def own_app(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(*COMMANDS[request.param], wait_for=None)


def ask(server: Server, method: str, path: str, body: Any = None, visitor: dict[str, str] = VISITOR) -> Any:
    with server.connect() as connection:
        return (
            connection.post(body, path, visitor) if method == "POST" else connection.ask(method, path, headers=visitor)
        )


def test_its_models_answer_and_stream_below_its_prefixes(own_app: Server) -> None:
    whole = ask(own_app, "POST", CHAT, chat(max_tokens=20))
    streamed = ask(own_app, "POST", CHAT, chat(max_tokens=20, stream=True))

    assert (whole.status, streamed.status) == (200, 200)
    assert text_of(events(streamed.body)) == whole.json["choices"][0]["message"]["content"]
    assert whole.headers["x-own"] == streamed.headers["x-own"] == "ann"


def test_its_own_check_of_visitors_stands_before_models(own_app: Server) -> None:
    refused = ask(own_app, "POST", CHAT, chat(max_tokens=1), visitor={})

    assert (refused.status, refused.json) == (401, {"own": "who are you?"})


def test_its_own_pages_and_errors_stay_its_own(own_app: Server) -> None:
    assert ask(own_app, "GET", "/api/ping").json == {"pong": "ann"}
    assert ask(own_app, "GET", "/api/fault").json == {"own": "KeyError"}
    assert ask(own_app, "GET", "/api/nowhere").json == {"own": "Not Found"}


def test_errors_of_models_keep_the_form_that_clients_expect(own_app: Server) -> None:
    refused = ask(own_app, "POST", CHAT, {"messages": []})
    message = ask(own_app, "POST", "/api/llm/v1/messages", {"messages": []})

    assert (refused.status, refused.error["param"]) == (400, "messages")
    assert (message.status, message.json["type"]) == (400, "error")


@pytest.mark.model
def test_requests_that_come_while_the_model_is_loaded_wait_for_it(start: Servers) -> None:
    server = start.start(*COMMANDS["gevent"], model="", ctx=256, slots=1, wait_for=None, OWN_APP_STARTS="0")
    assert ask(server, "GET", "/api/llm/health").status == 503, "it begins to load"

    with server.connect(timeout=90) as connection:
        answer = connection.post(chat(max_tokens=2), CHAT, VISITOR)

    assert answer.status == 200


def test_models_load_before_any_request_where_the_app_is_started(start: Servers, tmp_path: Path) -> None:
    """A pipe in a model's place tells when somebody opens it to read."""
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    start.start(*COMMANDS["gevent"], model=pipe, wait_for=None)

    writer = eventually(lambda: _open_if_read(pipe), START_SECONDS)

    os.close(writer)


def _open_if_read(pipe: Path) -> int | None:
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_starting_an_app_without_a_blueprint_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"register corosrv\.blueprint"):
        corosrv.start(Flask(__name__))


@pytest.mark.parametrize(
    ("command", "debug", "reload", "is_child", "loads"),
    [
        ("run", "0", None, "", True),
        ("run", "1", None, "", False),  # the process that watches files
        ("run", "1", None, "true", True),  # its child, which serves
        ("run", "0", True, "", False),
        ("run", "1", False, "", True),
        ("routes", "0", None, "", False),
    ],
)
def test_only_a_process_that_serves_loads_models(
    monkeypatch: pytest.MonkeyPatch, command: str, debug: str, reload: bool | None, is_child: str, loads: bool
) -> None:
    monkeypatch.setenv("FLASK_RUN_FROM_CLI", "true")
    monkeypatch.setenv("FLASK_DEBUG", debug)
    monkeypatch.setenv("WERKZEUG_RUN_MAIN", is_child)
    context = click.Context(click.Command(command), info_name=command)
    context.params["reload"] = reload

    with context:
        assert _is_served_by_flask_elsewhere() is not loads
