"""The OpenAPI document: Flask's own rules, what views say about themselves, and msgspec's schemas of their types.

A view says it at the route:

    @routes.post("/tokenize")
    @operation("Tokens", "Turn text into tokens", body=TokenizeBody, answer=Tokens, statuses=READS)
    def tokenize() -> Response: ...

Path and method are the route's own; the types are those that decode the bodies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from werkzeug.routing import Rule

from corosrv.contracts.idempotency import HEADER, MAX_KEY

View = TypeVar("View", bound=Callable[..., Any])

_ATTRIBUTE = "corosrv_operation"
IS_OPEN = "corosrv_is_open"  # a view that answers without a key
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
    form: Any
    answer: Any
    media_type: str
    events: Any
    events_end: str
    lines: Any
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
    form: Any = None,
    answer: Any = None,
    media_type: str = "application/json",
    events: Any = None,
    events_end: str = "",
    lines: Any = None,
    error: Any = None,
    statuses: tuple[int, ...] = (),
    parameters: Mapping[str, str] | None = None,
    query: type[msgspec.Struct] | None = None,
    headers: type[msgspec.Struct] | None = None,
    examples: Mapping[str, Any] | None = None,
) -> Callable[[View], View]:
    """Marks a view with what it does: `summary` in a few words, `text` in sentences, under the heading `tag`.

    `body`: the type that its request is decoded as; `form`: that of a form with files. `answer`: what a 200 holds, as
    `media_type`; where that is empty, the answer is a 204 without any. `events`: what each event of a stream holds,
    where `stream: true` asks for one, and `events_end` what stands in the last one instead. `lines`: what each line
    holds of a stream that is lines of JSON.
    `error`: the shape of the dialect's errors, which come with any of `statuses`; None is OpenAI's. `parameters`:
    words for those in the path; `query`: a struct of those behind the question mark, `headers`: one of those in the
    head. `examples`: bodies by title, the first of which the page begins with.
    """
    view_operation = Operation(
        tag=tag,
        summary=summary,
        text=text,
        body=body,
        form=form,
        answer=answer,
        media_type=media_type,
        events=events,
        events_end=events_end,
        lines=lines,
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
    setattr(view, IS_OPEN, True)
    return view


def with_idempotency_key(view: View) -> View:
    """Marks a view that answers a request once, however often it is repeated with its Idempotency-Key."""
    setattr(view, _TAKES_KEY, True)
    return view


_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"<(?:(?P<kind>\w+):)?(?P<name>\w+)>")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_WORDS = {
    400: "The request cannot be taken as it stands; `param` names the field at fault",
    401: "No key, or a wrong one",
    404: "There is no such thing here",
    409: "The first request with this Idempotency-Key still runs: repeat it later",
    410: "The events that are asked for are kept no longer",
    413: "The body is too large",
    415: "The body is no JSON, or compressed",
    422: "The Idempotency-Key was used for another request",
    429: "As many jobs wait as may wait",
    500: "A bug, or a decode that failed",
    501: "Switched off, or beyond this model",
    503: "Loading, failed to load, shutting down, or no slot became free in time",
    504: "The time that the request was given was over before its answer was complete",
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


class KeyHeader(msgspec.Struct):
    """Describes the header of routes that answer a repeated request with the answer of the first."""

    key: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_KEY,
            pattern="^[!-~]+$",
            description="A name for this request, chosen by the client: the same request with the same key is computed "
            "once, and answered with the same answer and `Idempotency-Replayed: true` from then on",
        ),
    ] = msgspec.field(name=HEADER, default="")


Ref = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path and a verb, and what the view behind them says; `main` is the path that this one is another name for."""

    path: str
    method: str
    operation: Operation
    is_open: bool = False
    is_keyed: bool = False
    main: str = ""


def routes(rules: Iterable[Rule], views: Mapping[str, Callable[..., Any]], prefix: str) -> list[Route]:
    """Lists the routes under a prefix whose views say what they do, in the order that they were made."""
    all_routes: list[Route] = []
    by_view: dict[tuple[Any, str], list[tuple[str, str]]] = {}
    for rule in rules:
        if rule.rule.startswith(prefix + "/") and find(views.get(rule.endpoint)):
            for method in _METHODS:
                if method in (rule.methods or ()):
                    by_view.setdefault((views[rule.endpoint], method), []).append((rule.rule[len(prefix) :], method))
    for (view, method), paths in by_view.items():
        marked = find(view)
        assert marked is not None
        main = min((path for path, _ in paths), key=lambda path: (not path.startswith("/v1/"), path))
        is_open = getattr(view, IS_OPEN, False)
        is_keyed = getattr(view, _TAKES_KEY, False)
        all_routes.append(Route(main, method, marked, is_open, is_keyed))
        all_routes += [Route(path, method, marked, is_open, is_keyed, main) for path, _ in paths if path != main]
    return all_routes


def document(
    shown_routes: Iterable[Route],
    *,
    default_error: Any,
    title: str,
    text: str,
    version: str,
    server: str,
    needs_key: bool,
    tags: Mapping[str, str],
) -> dict[str, Any]:
    """Makes the whole document, as OpenAPI 3.1 has it. `default_error`: the error's shape where a route names none.

    `tags`: every heading there is, in the order in which they are to be shown, and what stands below it.
    """
    shown_routes = list(shown_routes)
    types = list(_types(shown_routes, default_error))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type: dict[Any, dict[str, Any]] = dict(zip(map(_key, types), schemas, strict=True))

    def ref(kind: Any) -> dict[str, Any]:
        return by_type[_key(kind)]

    paths: dict[str, Any] = {}
    for route in shown_routes:
        path = _PARAMETER.sub(r"{\g<name>}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, ref, default_error)
    used = {route.operation.tag for route in shown_routes}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "description": text, "version": version},
        "servers": [{"url": server}],
        "tags": [{"name": tag, "description": words} for tag, words in tags.items() if tag in used],
        "security": [{"bearer": []}, {"header": []}] if needs_key else [],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": _KEYS if needs_key else {},
        },
    }


def _types(shown_routes: Iterable[Route], default_error: Any) -> Iterable[Any]:
    of_routes = (
        kind
        for route in shown_routes
        for said in [route.operation]
        for kind in (said.body, said.form, said.answer, said.events, said.lines, said.error, said.query)
    )
    return {_key(kind): kind for kind in (default_error, *of_routes) if kind is not None}.values()


def _key(kind: Any) -> Any:
    """Returns a key for a type: itself, or the text of a union or list, which is made anew each time."""
    return kind if isinstance(kind, type) else repr(kind)


def _operation(route: Route, ref: Ref, default_error: Any) -> dict[str, Any]:
    operation = route.operation
    members: dict[str, Any] = {
        "operationId": _id(route),
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": _responses(route, ref, default_error),
    }
    if operation.text:
        members["description"] = operation.text
    if route.main:
        members["x-alias-of"] = route.main
    if route.is_open:
        members["security"] = []
    if parameters := [
        *_path_parameters(route),
        *_named_parameters(operation.query, "query"),
        *header_parameters(operation.headers, route.is_keyed),
    ]:
        members["parameters"] = parameters
    if operation.body is not None:
        members["requestBody"] = {"required": True, "content": {"application/json": _body(operation, ref)}}
    if operation.form is not None:
        members["requestBody"] = {
            "required": True,
            "content": {"multipart/form-data": {"schema": ref(operation.form)}},
        }
    return members


def _id(route: Route) -> str:
    words = re.findall(r"[A-Za-z0-9]+", _PARAMETER.sub(r"\g<name>", route.path))
    slash = ["slash"] if words and route.path.endswith("/") else []
    return "_".join([route.method.lower(), *words, *slash])


def _body(operation: Operation, ref: Ref) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": ref(operation.body)}
    if operation.examples:
        content["examples"] = {title: {"value": value} for title, value in operation.examples.items()}
    return content


def _responses(route: Route, ref: Ref, default_error: Any) -> dict[str, Any]:
    operation = route.operation
    error = ref(default_error if operation.error is None else operation.error)
    content: dict[str, Any] = {
        operation.media_type: {"schema": {"type": "string"} if operation.answer is None else ref(operation.answer)}
    }
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _event(ref(operation.events), error, operation.events_end)}
    if operation.lines is not None:
        content["application/x-ndjson"] = {"schema": {"anyOf": [ref(operation.lines), error]}}
    is_empty = not operation.media_type
    responses: dict[str, Any] = (
        {"204": {"description": "Done"}} if is_empty else {"200": {"description": "Done", "content": content}}
    )
    by_route = () if route.is_open else (401,)
    by_key = (400, 409, 422) if route.is_keyed else ()
    for status in sorted({*operation.statuses, *by_route, *by_key}):
        responses[str(status)] = {
            "description": _WORDS.get(status, HTTPStatus(status).phrase),
            "content": {"application/json": {"schema": error}},
        }
    return responses


def _event(kind: dict[str, Any], error: dict[str, Any], end: str) -> dict[str, Any]:
    """Describes one server-sent event. Its data are of one kind or an error; the last ones may be a word instead."""
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [kind, error]},
    }
    if end:
        data = {"anyOf": [data, {"const": end}]}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for match in _PARAMETER.finditer(route.path):
        kind = {"type": "integer", "minimum": 0} if match["kind"] == "int" else {"type": "string", "minLength": 1}
        text = route.operation.parameters.get(match["name"], "")
        yield {"name": match["name"], "in": "path", "required": True, "description": text, "schema": kind}


def header_parameters(headers: type[msgspec.Struct] | None, is_keyed: bool) -> Iterable[dict[str, Any]]:
    """Describes the headers of a struct, and the idempotency key where the route heeds it."""
    yield from _named_parameters(headers, "header")
    if is_keyed:
        yield from _named_parameters(KeyHeader, "header")


def _named_parameters(kind: type[msgspec.Struct] | None, place: str) -> Iterable[dict[str, Any]]:
    if kind is None:
        return
    _, components = msgspec.json.schema_components([kind], ref_template=_REF)
    schema = components[kind.__name__]
    for name, described in schema["properties"].items():
        yield {"name": name, "in": place, "required": name in schema.get("required", ()), "schema": described}
