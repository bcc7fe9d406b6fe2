"""Describes routes for the API document, each at the route itself.

    @routes.post("/tokenize")
    @operation("Tokens", "Turn text into tokens", body=TokenizeBody, answer=Tokens, statuses=READS)
    def tokenize() -> Response: ...

Path and method are the route's own; the types are those that decode the bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

View = TypeVar("View", bound=Callable[..., Any])

_ATTRIBUTE = "corosrv_operation"
_IS_OPEN = "corosrv_is_open"
_TAKES_KEY = "corosrv_takes_key"

# Statuses besides 200 and 401, which all have.
READS = (400, 413, 415)  # whatever has a body
NEEDS_MODEL = (404, 503)  # whatever asks a model
GENERATES = (*READS, *NEEDS_MODEL, 429, 500, 504)  # whatever submits a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that can be asked of the server; see `operation`."""

    tag: str
    summary: str
    text: str
    body: Any
    answer: Any
    media_type: str
    events: Any
    events_end: str
    error: Any
    statuses: tuple[int, ...]
    parameters: Mapping[str, str]
    query: type[msgspec.Struct] | None
    headers: type[msgspec.Struct] | None
    examples: Mapping[str, Any] = field(default_factory=dict)


def operation(
    tag: str,
    summary: str,
    text: str = "",
    *,
    body: Any = None,
    answer: Any = None,
    media_type: str = "application/json",
    events: Any = None,
    events_end: str = "",
    error: Any = None,
    statuses: tuple[int, ...] = (),
    parameters: Mapping[str, str] | None = None,
    query: type[msgspec.Struct] | None = None,
    headers: type[msgspec.Struct] | None = None,
    examples: Mapping[str, Any] | None = None,
) -> Callable[[View], View]:
    """Marks a view with what it does: `summary` in a few words, `text` in sentences, under the heading `tag`.

    `body`: the type that its request is decoded as. `answer`: what a 200 holds, as `media_type`. `events`: what each
    event of a stream holds, where `stream: true` asks for one, and `events_end` what stands in the last one instead.
    `error`: the shape of the dialect's errors, which come with any of `statuses`; None is OpenAI's. `parameters`:
    words for those in the path; `query`: a struct of those behind the question mark, `headers`: one of those in the
    head. `examples`: bodies by title, the first of which the page begins with.
    """
    view_operation = Operation(
        tag=tag,
        summary=summary,
        text=text,
        body=body,
        answer=answer,
        media_type=media_type,
        events=events,
        events_end=events_end,
        error=error,
        statuses=statuses,
        parameters=parameters or {},
        query=query,
        headers=headers,
        examples=examples or {},
    )

    def mark(view: View) -> View:
        setattr(view, _ATTRIBUTE, view_operation)
        return view

    return mark


def find(view: Callable[..., Any] | None) -> Operation | None:
    """Returns the operation that a view is marked with, or None."""
    return getattr(view, _ATTRIBUTE, None)


def without_key(view: View) -> View:
    """Marks a view that answers to everybody: it tells nothing that needs a key."""
    setattr(view, _IS_OPEN, True)
    return view


def is_open(view: Callable[..., Any] | None) -> bool:
    """Returns whether the view answers without a key."""
    return getattr(view, _IS_OPEN, False)


def with_idempotency_key(view: View) -> View:
    """Marks a view that answers a request once, however often it is repeated with its Idempotency-Key."""
    setattr(view, _TAKES_KEY, True)
    return view


def takes_idempotency_key(view: Callable[..., Any] | None) -> bool:
    """Returns whether the view heeds the header Idempotency-Key."""
    return getattr(view, _TAKES_KEY, False)
