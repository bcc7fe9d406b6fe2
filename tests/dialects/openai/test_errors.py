"""Errors in OpenAI's shape: a status, a type and a code for each, and always four members."""

import re

import msgspec
import pytest
from flask import Flask, Response

from corosrv.base import errors
from corosrv.dialects.openai import events as wire
from corosrv.web.http.reply import error_response


def response(error: errors.CorosrvError) -> Response:
    with Flask(__name__).test_request_context():
        return error_response(error, wire.body(error))


TABLE = [
    (errors.HttpError(404, "m"), 404, "not_found_error", None, None),
    (errors.HttpError(405, "m"), 405, "invalid_request_error", None, "method_not_allowed"),
    (errors.HttpError(400, "m"), 400, "invalid_request_error", None, None),
    (errors.HttpError(500, "m"), 500, "server_error", None, None),
    (errors.HttpError(501, "m"), 501, "not_supported_error", None, None),
    (errors.Forbidden("m", "c"), 403, "permission_error", None, "c"),
    (errors.BodyIncomplete("m"), 400, "invalid_request_error", None, "incomplete_body"),
    (errors.Refused("m", "n"), 400, "invalid_request_error", "n", "invalid_value"),
    (errors.Refused("m", "n", None), 400, "invalid_request_error", "n", None),
    (errors.NotSupported("m", "n", "unsupported_content"), 400, "invalid_request_error", "n", "unsupported_content"),
    (errors.PromptTooLong(9, 8, "prompt"), 400, "exceed_context_size_error", "prompt", "context_length_exceeded"),
    (errors.Unauthorized("m"), 401, "authentication_error", None, "invalid_api_key"),
    (errors.NotFound("m", "n", "response_not_found"), 404, "not_found_error", "n", "response_not_found"),
    (errors.NotOffered("m"), 501, "not_supported_error", None, None),
    (errors.ModelNotFound("x"), 404, "not_found_error", "model", "model_not_found"),
    (errors.BodyTooLarge(8), 413, "invalid_request_error", None, "body_too_large"),
    (errors.BodyTooSlow(), 408, "invalid_request_error", None, "request_timeout"),
    (errors.UnsupportedMedia("m"), 415, "invalid_request_error", None, "unsupported_media_type"),
    (errors.InvalidImage("m", "p"), 400, "invalid_request_error", "p", "invalid_image"),
    (errors.TemplateTooCostly("m", "n"), 400, "invalid_request_error", "n", "invalid_value"),
    (errors.InvalidTrip("m", "p"), 400, "invalid_request_error", "p", "invalid_value"),
    (errors.InvalidJson("m"), 400, "invalid_request_error", None, "invalid_json"),
    (errors.InvalidGrammar("m"), 400, "invalid_request_error", "grammar", "invalid_grammar"),
    (errors.InvalidSchema("#/a", "m", "p"), 400, "invalid_request_error", "p", "invalid_schema"),
    (errors.JobWaitedTooLong("m", "c"), 503, "unavailable_error", None, "c"),
    (errors.QueueFull("m"), 429, "rate_limit_error", None, "queue_full"),
    (errors.LimitReached("m", 0.2), 429, "rate_limit_error", None, "rate_limit_exceeded"),
    (errors.ClientGone("m"), 499, "client_closed_request", None, None),
    (errors.CorosrvError("m"), 500, "server_error", None, None),
    (errors.JobFailed("m"), 500, "server_error", None, None),
    (errors.Misuse("m"), 500, "server_error", None, None),
    (errors.WrongThread("m"), 500, "server_error", None, None),
    (errors.UsedAfterClose("m"), 500, "server_error", None, None),
    (errors.ReadTimeout("m"), 500, "server_error", None, None),
    (errors.SettingsError("m"), 500, "server_error", None, None),
    (errors.LibllamaError("m"), 500, "server_error", None, None),
    (errors.BenchError("m"), 500, "server_error", None, None),
    (errors.HubError("m"), 500, "server_error", None, None),
    (errors.HubMissing(), 500, "server_error", None, None),
    (errors.Unavailable("m"), 503, "unavailable_error", None, None),
    (errors.Starting("m"), 503, "unavailable_error", None, None),
    (errors.ModelFailed("m"), 503, "unavailable_error", None, None),
    (errors.ShuttingDown("m"), 503, "unavailable_error", None, None),
    (errors.NoDescriptor("m"), 503, "unavailable_error", None, None),
    (errors.TooManyBodies(8), 503, "unavailable_error", None, None),
    (errors.TooManyImages(8), 503, "unavailable_error", None, None),
    (errors.EncoderBusy(8), 503, "unavailable_error", None, None),
    (errors.EncoderUnavailable("m"), 503, "unavailable_error", None, None),
    (errors.EncodeTimedOut("m"), 504, "server_error", None, "image_timeout"),
    (errors.DecoderUnavailable("m"), 503, "unavailable_error", None, None),
    (errors.TooBusy("m"), 503, "unavailable_error", None, None),
    (errors.NoWorker("m"), 503, "unavailable_error", None, None),
    (errors.RedisUnavailable("m"), 503, "unavailable_error", None, None),
    (errors.RedisRefused("m", "OOM"), 503, "unavailable_error", None, None),
    (errors.LoopDetected("m"), 508, "server_error", None, "loop_detected"),
    (errors.SlotBusy("m"), 503, "unavailable_error", None, None),
    (errors.JobRefused("m", code="grammar_dead_end"), 400, "invalid_request_error", None, "grammar_dead_end"),
    (errors.JobPutOff("m", code="queue_timeout"), 503, "unavailable_error", None, "queue_timeout"),
    (errors.JobOverdue("m", code="deadline_exceeded"), 504, "server_error", None, "deadline_exceeded"),
    (errors.GroupAborted("g"), 499, "client_closed_request", None, "group_aborted"),
    (errors.EventsGone("events 1 to 4", 5, "n"), 410, "not_found_error", "n", "events_gone"),
    (errors.TooManyLogs(2), 503, "unavailable_error", None, None),
    (errors.EngineGone("a"), 503, "unavailable_error", None, "engine_gone"),
    (errors.KeyNotCounted(), 503, "unavailable_error", None, None),
    (errors.TooManyMembers(2), 503, "unavailable_error", None, None),
    (errors.UsedAfterFork("m"), 503, "unavailable_error", None, None),
]


def classes(root: type[errors.CorosrvError]) -> set[type[errors.CorosrvError]]:
    return {root}.union(*map(classes, root.__subclasses__()))


# Without those that tests define.
OURS = {kind for kind in classes(errors.CorosrvError) if kind.__module__.startswith(errors.__name__)}


def named(value):
    return type(value).__name__ if isinstance(value, Exception) else None


@pytest.mark.parametrize(("error", "status", "kind", "param", "code"), TABLE, ids=named)
def test_an_error_has_its_status_and_four_members(error, status, kind, param, code):
    answer = response(error)

    members = answer.get_json()["error"]
    assert answer.status_code == status
    assert {name: members[name] for name in ("message", "type", "param", "code")} == {
        "message": str(error),
        "type": kind,
        "param": param,
        "code": code,
    }


# What goes wrong with predictions and their worker alone is in tests/dialects/predictions/test_errors.py; what goes
# wrong with # calls of handlers, which OpenAI's clients do not make, in tests/kserve.
ELSEWHERE = {
    errors.InvalidInput, errors.NotStreamed, errors.IdTaken, errors.TooManyReaders, errors.NoCapacity,
    errors.WorkerGone, errors.LoadError, errors.SignatureError, errors.InputFailed, errors.OutputFailed,
    errors.RedirectRefused, errors.DestinationRefused,
    errors.InvalidTensor, errors.CallRefused, errors.Conflict, errors.DeadlinePassed, errors.CallCancelled,
    errors.HandlerFailed, errors.WorkerLost, errors.ObjectExpired, errors.ObjectNotFound, errors.ObjectTooLarge,
    errors.StoreFull, errors.ManagementError, errors.AppError, errors.KeyReused, errors.McpServerFailed,
    errors.NotHandedOver,
    errors.AnswerTooLarge, errors.MessageTooLarge,
    errors.IllegalTransition, *classes(errors.WireError),
}  # fmt: skip


def test_the_table_has_every_error():
    tested = {type(error) for error, *_ in TABLE} | ELSEWHERE

    assert tested == OURS


def test_the_tree_in_the_package_s_docstring_has_every_error():
    drawn = re.findall(
        r"^[│ ]*(?:├── |└── )?(\w+)(?: .*)?$", errors.__doc__.partition("\n\nCorosrvError\n")[2], re.MULTILINE
    )

    assert sorted(drawn[: drawn.index("UsedAfterFork") + 1]) == sorted(
        kind.__name__
        for kind in classes(errors.CorosrvError) - {errors.CorosrvError}
        if kind.__module__.startswith(errors.__name__)
    )


def test_a_prompt_that_is_too_long_comes_with_its_numbers():
    members = msgspec.to_builtins(wire.body(errors.PromptTooLong(9, 8)))["error"]

    assert (members["n_prompt_tokens"], members["n_ctx"]) == (9, 8)
    assert "9" in members["message"]
    assert "8" in members["message"]


@pytest.mark.parametrize(("error", "status"), [(error, status) for error, status, *_ in TABLE], ids=named)
def test_only_what_passes_by_itself_says_when_to_try_again(error, status):
    stays = errors.ModelFailed, errors.EngineGone, errors.KeyNotCounted
    passes = isinstance(error, errors.Unavailable) and not isinstance(error, stays)

    assert response(error).headers.get("Retry-After") == ("1" if passes else None)


def test_a_missing_key_is_asked_for():
    assert response(errors.Unauthorized("m")).headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("error", "closes"),
    [
        (errors.Unauthorized("m"), True),
        (errors.BodyTooLarge(8), True),
        (errors.UnsupportedMedia("m"), True),
        (errors.BodyIncomplete("m"), True),
        (errors.BodyTooSlow(), True),
        (errors.Forbidden("m", "c"), True),
        (errors.Refused("m"), False),
        (errors.QueueFull("m"), False),
    ],
)
def test_a_connection_with_an_unread_body_is_closed(error, closes):
    assert (response(error).headers.get("Connection") == "close") is closes


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (errors.JobOverdue("m"), "false"),
        (errors.DeadlinePassed("m"), "false"),
        (errors.JobWaitedTooLong("m"), "false"),
        (errors.Starting("m", has_waited=True), "false"),
        (errors.Starting("m"), None),
        (errors.JobPutOff("m"), None),
        (errors.QueueFull("m"), None),
        (errors.LimitReached("m", 0.2), None),
        (errors.LimitReached("m", None), "false"),
    ],
)
def test_clients_are_told_not_to_repeat_what_has_waited_or_run_for_its_time(
    error: errors.CorosrvError, told: str | None
):
    assert response(error).headers.get("X-Should-Retry") == told
