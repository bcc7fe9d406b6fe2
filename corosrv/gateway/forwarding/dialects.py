"""Writes errors as the clients of a path expect them: in OpenAI's form, or in Anthropic's."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors import CorosrvError
from corosrv.dialects.anthropic import errors as anthropic_errors
from corosrv.dialects.anthropic import routes as anthropic
from corosrv.dialects.generation.events import event, named_event
from corosrv.dialects.openai import errors as openai_errors


def error_body(error: CorosrvError, path: str) -> Any:
    """Makes the body of an error that ends the current request."""
    return anthropic.error_body(error) if anthropic.has_path(path) else openai_errors.body(error)


def error_event(error: CorosrvError, *, is_anthropic: bool, request_id: str) -> bytes:
    """Makes the event of an error that ends a stream."""
    if is_anthropic:
        return named_event("error", anthropic_errors.body(error, request_id))
    return event(openai_errors.body(error))
