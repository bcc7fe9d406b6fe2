"""Requests that cannot be served are refused in words, by name, and by the right status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from corosrv.contracts.settings.model_list import packaged_model
from tests.serve.server import APP, SERVE, START_SECONDS, Servers
from tests.serve.wire import CHAT, Answer, Connection, chat
from tests.support.gguf import write_llama
from tests.support.waiting import eventually

COMPLETIONS = "/v1/completions"
GOOD = b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}'


def assert_refused(answer: Answer, status: int = 400, **members: Any) -> None:
    """The answer is an error with its four members, and these values of them."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert {"message", "type", "param", "code"} <= set(answer.error)
    assert answer.error["message"]
    for inside in ("Traceback", "msgspec", "std::", "0x", "corosrv/", ".py"):
        assert inside not in answer.error["message"]
    assert {name: answer.error[name] for name in members} == members


# Bodies


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b"[]",
        b"null",
        b'"text"',
        GOOD.decode().encode("utf-16"),
        GOOD.replace(b"x", b"\xff"),
        GOOD + b" trailing",
        GOOD.replace(b'"', b"'"),
        GOOD[:-1] + b', "temperature": NaN}',
        GOOD[:-1] + b', "temperature": -Infinity}',
        GOOD[:-1] + b', "unknown": NaN}',
        GOOD[:-1] + b', "unknown": ' + b"[" * 200 + b"]" * 200 + b"}",
        b"[" * 100_000,
    ],
    ids=lambda body: body[-24:].decode("latin-1") + f" ({len(body)})",
)
def test_a_body_that_is_no_json_object_is_refused(connection: Connection, path: str, body: bytes) -> None:
    assert_refused(connection.post(body, path), type="invalid_request_error", code="invalid_json")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/xml"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Encoding": "gzip", "Content-Type": "application/json"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400),
    ],
)
def test_a_body_of_another_type_is_refused(connection: Connection, headers: dict[str, str], status: int) -> None:
    answer = connection.post(b"<a/>", headers=headers)

    assert_refused(answer, status, code="unsupported_media_type" if status == 415 else "invalid_json")


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"]
)
def test_what_is_json_is_taken_whatever_it_is_called(connection: Connection, kind: str) -> None:
    assert connection.post(chat(max_tokens=1), headers={"Content-Type": kind} if kind else {}).status == 200


# Fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"messages": [{"role": "user", "content": "x"}] * 2049}, "messages"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_completion_tokens": -2}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**300}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 10**30}, "n"),
        ({"stop": 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": "x"}, "stream_options"),
        ({"logit_bias": "x"}, "logit_bias"),
        ({"logit_bias": {"5": 200}}, "logit_bias"),
        ({"logit_bias": {"100000000": 1}}, "logit_bias"),
        ({"model": 5}, "model"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_is_refused_by_name(
    connection: Connection, fields: dict[str, Any], param: str | None
) -> None:
    for is_stream in (False, True):
        sent = {"stream": is_stream} if "stream" not in fields and "stream_options" not in fields else {}
        answer = connection.post(chat() | sent | fields)

        assert_refused(answer, type="invalid_request_error")
        if param is not None:
            assert answer.error["param"] == param


@pytest.mark.parametrize(
    "prompt", [None, 5, [], [[]], [""] * 65, [1.5], [True], [10**6], [-1], [2**70], [[["x"]]]], ids=str
)
def test_a_prompt_that_cannot_be_is_refused(connection: Connection, prompt: Any) -> None:
    answer = connection.post({"prompt": prompt, "max_tokens": 1}, COMPLETIONS)

    assert_refused(answer, type="invalid_request_error")
    assert answer.error["param"].startswith("prompt")


@pytest.mark.parametrize(
    "fields",
    [{"functions": [{"name": "f"}]}, {"modalities": ["audio"]}, {"n_indent": 1}],
    ids=str,
)
def test_a_parameter_that_is_not_offered_is_refused_by_name(connection: Connection, fields: dict[str, Any]) -> None:
    (name,) = fields

    answer = connection.post(chat(max_tokens=1, **fields))

    assert_refused(answer, param=name, code="unsupported_parameter")
    assert name in answer.error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "sometimes"},
        {"tools": [{"type": "function"}]},
        {"response_format": "json"},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 21},
        {"json_schema": 5},
    ],
    ids=str,
)
def test_tools_formats_and_logprobs_that_cannot_be_are_refused_by_name(
    connection: Connection, fields: dict[str, Any]
) -> None:
    answer = connection.post(chat(max_tokens=1, **fields))

    assert_refused(answer, type="invalid_request_error")
    assert str(answer.error["param"]).startswith(list(fields)[-1])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": 5}, "suffix"),
    ],
    ids=str,
)
def test_a_parameter_of_completions_that_cannot_be_is_refused(
    connection: Connection, fields: dict[str, Any], param: str
) -> None:
    assert_refused(connection.post({"prompt": "x", **fields}, COMPLETIONS), param=param)


def test_null_is_absent_and_what_nobody_knows_is_ignored(connection: Connection) -> None:
    known = dict.fromkeys(("temperature", "stop", "seed", "n", "tools", "response_format", "stream_options"))
    meaningless = {"user": "me", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "modalities": ["text"]}

    answer = connection.post(chat(max_tokens=1, **known, **meaningless, no_such_field={"deep": [1, {"x": None}]}))

    assert answer.status == 200


@pytest.mark.parametrize("max_tokens", [-1, 10**9, 10**30])
def test_more_tokens_than_fit_end_by_length(connection: Connection, max_tokens: int) -> None:
    answer = connection.post({"prompt": "x" * 4090, "max_tokens": max_tokens}, COMPLETIONS)

    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["total_tokens"] <= 4097


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("length", [4096, 5000, 60_000])
def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    connection: Connection, length: int, is_stream: bool
) -> None:
    answer = connection.post({"prompt": "x" * length, "stream": is_stream}, COMPLETIONS)

    assert_refused(answer, type="exceed_context_size_error", code="context_length_exceeded", param="prompt")
    assert (answer.error["n_prompt_tokens"], answer.error["n_ctx"]) == (length, 4096)
    assert str(length) in answer.error["message"]
    assert "4096" in answer.error["message"]


def test_megabytes_of_prompt_are_refused_without_being_read_as_tokens(connection: Connection) -> None:
    answer = connection.post(chat("word " * 1_000_000))

    assert_refused(answer, code="context_length_exceeded", param="messages")
    assert answer.error["n_prompt_tokens"] > answer.error["n_ctx"] == 4096


def test_the_longest_prompt_that_fits_is_answered(connection: Connection) -> None:
    answer = connection.post({"prompt": "x" * 4095}, COMPLETIONS)

    assert answer.json["usage"]["prompt_tokens"] == 4095
    assert answer.json["choices"][0]["finish_reason"] == "length"


# Paths and models


@pytest.mark.parametrize("path", ["/v1", "/v1/audio/speech", "/v1/models/", "/../../etc/passwd", "/%00"])
def test_an_unknown_path_is_not_found(connection: Connection, path: str) -> None:
    assert_refused(connection.ask("GET", path), 404, type="not_found_error")


def test_without_the_strict_setting_any_model_name_is_answered_by_the_loaded_one(connection: Connection) -> None:
    answer = connection.post(chat(model="gpt-4", max_tokens=1))

    assert (answer.status, answer.json["model"]) == (200, "synthetic")


def test_with_the_strict_setting_an_unknown_model_is_not_found(start: Servers) -> None:
    server = start.start(strict_model=1, model_alias="first, second")
    with server.connect() as connection:
        for is_stream in (False, True):
            answer = connection.post(chat(model="third", stream=is_stream))
            assert_refused(answer, 404, type="not_found_error", code="model_not_found", param="model")
        assert connection.post(chat(model="second", max_tokens=1)).json["model"] == "first"
        assert connection.post(chat(max_tokens=1)).status == 200
        assert connection.ask("GET", "/v1/models/second").json["aliases"] == ["first", "second"]


# Models that cannot be loaded


def missing(folder: Path) -> Path:
    return folder / "missing.gguf"


def not_a_gguf(folder: Path) -> Path:
    path = folder / "text.gguf"
    path.write_text("This is no model.\n" * 1000)
    return path


def empty(folder: Path) -> Path:
    path = folder / "empty.gguf"
    path.touch()
    return path


def truncated(folder: Path) -> Path:
    path = folder / "truncated.gguf"
    with open(packaged_model(), "rb") as whole:
        path.write_bytes(whole.read(3_000_000))
    return path


@pytest.mark.parametrize(
    ("make", "command"),
    [
        (missing, APP),
        (not_a_gguf, APP),
        (empty, APP),
        pytest.param(truncated, APP, marks=pytest.mark.model),
        pytest.param(truncated, SERVE, marks=pytest.mark.model),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told_and_the_process_lives(
    start: Servers, tmp_path: Path, make: Any, command: tuple[str, ...]
) -> None:
    path = make(tmp_path)

    server = start.start(*command, model=path, unloadable_s=-1, wait_for="failed")

    with server.connect() as connection:
        health = connection.ask("GET", "/health")
        assert health.status == 503
        assert path.name in health.error["message"]
        assert "retry-after" not in health.headers
        for is_stream in (False, True):
            assert_refused(connection.post(chat(stream=is_stream)), 503, type="unavailable_error")
        [listed] = connection.ask("GET", "/v1/models").json["data"]
        assert listed["status"]["failed"]
        assert connection.ask("GET", "/metrics").status == 200
    assert server.worker.is_alive
    assert path.name in server.log


def cut_short(folder: Path) -> Path:
    """Makes a model whose head is whole, so that only loading it can tell that weights are missing."""
    path = write_llama(folder / "short.gguf")
    os.truncate(path, path.stat().st_size - 64)
    return path


@pytest.mark.parametrize("model", ["{broken}", "a={broken},b={broken}"])
def test_a_server_none_of_whose_models_can_be_loaded_ends_with_a_status(
    start: Servers, tmp_path: Path, model: str
) -> None:
    broken = cut_short(tmp_path)

    server = start.start(*SERVE, model=model.format(broken=broken), unloadable_s=0, wait_for=None)

    assert server.wait(START_SECONDS) == 1
    assert "corosrv cannot start: no model could be loaded: " in server.log
    assert broken.name in server.log


def test_a_file_that_is_no_model_is_told_at_once_and_when_the_server_ends(start: Servers, tmp_path: Path) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<!DOCTYPE html>")

    server = start.start(*SERVE, model=page, unloadable_s=600, wait_for="failed")

    assert "page.gguf is a web page, as a failed download leaves it" in server.log
    eventually(lambda: "this server ends in 600 s (COROSRV_UNLOADABLE_S)" in server.log, what="the time of the end")
    assert server.get("/v1/models")[0] == 200


def test_a_server_that_has_another_model_goes_on(start: Servers, tmp_path: Path) -> None:
    model = f"a={cut_short(tmp_path)},b=synthetic:"

    server = start.start(*SERVE, model=model, unloadable_s=1, wait_for="failed")

    with server.connect() as connection:
        assert connection.post(chat(model="b", max_tokens=1)).status == 200
        listed = {card["id"]: card["status"]["value"] for card in connection.ask("GET", "/v1/models").json["data"]}
    assert listed["b"] == "loaded"


def test_a_setting_that_cannot_be_stops_the_start_and_is_named(start: Servers) -> None:
    with pytest.raises(AssertionError, match="COROSRV_SLOTS must be from 1"):
        start.start(*SERVE, slots=-1)
