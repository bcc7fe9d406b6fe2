"""The OpenAPI document: Flask's own rules, what views say about themselves, and msgspec's schemas of their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from werkzeug.routing import Rule

from corosrv.http import operation as operations
from corosrv.http.operation import Operation

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"<(?:(?P<kind>\w+):)?(?P<name>\w+)>")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_WORDS = {
    400: "The request cannot be taken as it stands; `param` names the field at fault",
    401: "No key, or a wrong one",
    404: "There is no such thing here",
    413: "The body is too large",
    415: "The body is no JSON, or compressed",
    429: "As many jobs wait as may wait",
    500: "A bug, or a decode that failed",
    501: "Switched off, or beyond this model",
    503: "Loading, failed to load, or shutting down",
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}

Ref = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path and a verb, and what the view behind them says; `main` is the path that this one is another name for."""

    path: str
    method: str
    operation: Operation
    is_open: bool = False
    main: str = ""


def routes(rules: Iterable[Rule], views: Mapping[str, Callable[..., Any]], prefix: str) -> list[Route]:
    """The routes under a prefix whose views say what they do, in the order that they were made."""
    found: list[Route] = []
    by_view: dict[tuple[Any, str], list[tuple[str, str]]] = {}
    for rule in rules:
        if rule.rule.startswith(prefix + "/") and operations.of(views.get(rule.endpoint)):
            for method in _METHODS:
                if method in (rule.methods or ()):
                    by_view.setdefault((views[rule.endpoint], method), []).append((rule.rule[len(prefix) :], method))
    for (view, method), paths in by_view.items():
        said = operations.of(view)
        assert said is not None
        main = min((path for path, _ in paths), key=lambda path: (not path.startswith("/v1/"), path))
        is_open = operations.is_open(view)
        found.append(Route(main, method, said, is_open))
        found += [Route(path, method, said, is_open, main) for path, _ in paths if path != main]
    return found


def document(
    found: Iterable[Route],
    *,
    default_error: Any,
    title: str,
    text: str,
    version: str,
    server: str,
    needs_key: bool,
    tags: Mapping[str, str],
) -> dict[str, Any]:
    """The whole document, as OpenAPI 3.1 has it. `default_error`: the error's shape where a route names none.

    `tags`: every heading there is, in the order in which they are to be shown, and what stands below it.
    """
    found = list(found)
    types = list(_types(found, default_error))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type: dict[Any, dict[str, Any]] = dict(zip(map(_key, types), schemas, strict=True))

    def ref(of: Any) -> dict[str, Any]:
        return by_type[_key(of)]

    paths: dict[str, Any] = {}
    for route in found:
        path = _PARAMETER.sub(r"{\g<name>}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, ref, default_error)
    used = {route.operation.tag for route in found}
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


def _types(found: Iterable[Route], default_error: Any) -> Iterable[Any]:
    of_routes = (
        kind
        for route in found
        for said in [route.operation]
        for kind in (said.body, said.answer, said.events, said.error, said.query)
    )
    return {_key(kind): kind for kind in (default_error, *of_routes) if kind is not None}.values()


def _key(kind: Any) -> Any:
    """Types are told apart by what they are; unions and lists, which are made anew each time, by how they read."""
    return kind if isinstance(kind, type) else repr(kind)


def _operation(route: Route, ref: Ref, default_error: Any) -> dict[str, Any]:
    said = route.operation
    described: dict[str, Any] = {
        "operationId": _id(route),
        "tags": [said.tag],
        "summary": said.summary,
        "responses": _responses(route, ref, default_error),
    }
    if said.text:
        described["description"] = said.text
    if route.main:
        described["x-alias-of"] = route.main
    if route.is_open:
        described["security"] = []
    if parameters := [*_path_parameters(route), *_query_parameters(said)]:
        described["parameters"] = parameters
    if said.body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": _body(said, ref)}}
    return described


def _id(route: Route) -> str:
    words = re.findall(r"[A-Za-z0-9]+", _PARAMETER.sub(r"\g<name>", route.path))
    return "_".join([route.method.lower(), *words])


def _body(said: Operation, ref: Ref) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": ref(said.body)}
    if said.examples:
        content["examples"] = {title: {"value": value} for title, value in said.examples.items()}
    return content


def _responses(route: Route, ref: Ref, default_error: Any) -> dict[str, Any]:
    said = route.operation
    refused = ref(default_error if said.error is None else said.error)
    content: dict[str, Any] = {
        said.media_type: {"schema": {"type": "string"} if said.answer is None else ref(said.answer)}
    }
    if said.events is not None:
        content["text/event-stream"] = {"schema": _event(ref(said.events), refused, said.events_end)}
    responses: dict[str, Any] = {"200": {"description": "Done", "content": content}}
    for status in sorted({*said.statuses, *(() if route.is_open else (401,))}):
        responses[str(status)] = {
            "description": _WORDS.get(status, HTTPStatus(status).phrase),
            "content": {"application/json": {"schema": refused}},
        }
    return responses


def _event(of: dict[str, Any], refused: dict[str, Any], end: str) -> dict[str, Any]:
    """One server-sent event. Its data are of one kind or say what failed; the last ones may be a word instead."""
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [of, refused]},
    }
    if end:
        data = {"anyOf": [data, {"const": end}]}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for found in _PARAMETER.finditer(route.path):
        kind = {"type": "integer", "minimum": 0} if found["kind"] == "int" else {"type": "string", "minLength": 1}
        text = route.operation.parameters.get(found["name"], "")
        yield {"name": found["name"], "in": "path", "required": True, "description": text, "schema": kind}


def _query_parameters(said: Operation) -> Iterable[dict[str, Any]]:
    if said.query is None:
        return
    _, components = msgspec.json.schema_components([said.query], ref_template=_REF)
    described = components[said.query.__name__]
    for name, kind in described["properties"].items():
        yield {"name": name, "in": "query", "required": name in described.get("required", ()), "schema": kind}
