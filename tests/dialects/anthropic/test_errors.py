"""Errors in Anthropic's shape: a status and a type for each."""

import msgspec
import pytest

from corosrv.base import errors
from corosrv.dialects.anthropic import answers
from tests.dialects.openai.test_errors import TABLE

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    410: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    499: "api_error",
    500: "api_error",
    501: "invalid_request_error",
    503: "overloaded_error",
    504: "api_error",
    508: "api_error",
}


@pytest.mark.parametrize(("error", "status"), [row[:2] for row in TABLE], ids=lambda value: type(value).__name__)
def test_an_error_has_its_status_and_type(error: errors.CorosrvError, status: int) -> None:
    assert error.status == status
    assert msgspec.to_builtins(answers.body(error, "req_1")) == {
        "type": "error",
        "error": {"type": TYPES[status], "message": str(error)},
        "request_id": "req_1",
    }


def test_a_client_that_asks_for_a_thread_is_told_how_to_go_on_without() -> None:
    body = answers.body(errors.NotSupported("thread is not supported", "thread"), "req_1")

    assert msgspec.to_builtins(body)["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
