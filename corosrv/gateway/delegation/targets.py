"""Finds what the request at hand is for, by its path or by what its body names, so that a peer can be found for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from flask import Request

from corosrv.base.errors import Refused
from corosrv.dialects.kserve.infer_request import LENGTH_HEADER
from corosrv.dialects.kserve.parameters import parse_capability
from corosrv.dialects.ollama.catalog import spellings
from corosrv.formats.bodies import decode_unscanned
from corosrv.gateway.delegation.announcement import (
    ANTHROPIC,
    LLAMACPP,
    OLLAMA,
    OPENAI,
    PREDICTIONS,
    UPSTREAM,
    V2,
    Offers,
)
from corosrv.gateway.forwarding.peek import BY_PATH, ForwardedPath, peek
from corosrv.web.http.body_reader import BodyReader
from corosrv.workers.dispatch.capability import CapabilityQuery, parse_query

CAPABILITY_PATH = "/v2/capabilities/infer"

_OPENAI_TAGS = frozenset({"Chat", "Responses", "Embeddings"})
_V2_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|generate|generate_stream|ready))?")
_V2_READS = frozenset({None, "ready"})
_MODEL_PATH = re.compile(r"/v1/models/(.+)")
_PREDICTIONS_PATH = re.compile(r"/predictions(?:/.+)?")
_KEPT_PATH = re.compile(r"/v1/responses/([^/]+)(?:/cancel|/input_items)?")


# Those of Ollama's API whose bodies name a model.
_OLLAMA_PATHS = frozenset({"/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"})


class PeerTarget(Protocol):
    """Names the thing that a request is for."""

    @property
    def key(self) -> str:
        """Names the target, for records and for the log."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model that it is, by one of which an API key may use it; none: it is no model."""

    def is_offered(self, offers: Offers) -> bool:
        """Tells whether a replica serves it."""


@dataclass(frozen=True, slots=True)
class ModelOfDialect:
    """A model, by the name that a body in one of the generating dialects has."""

    format: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.format}:{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def is_offered(self, offers: Offers) -> bool:
        return self.format in offers.formats and offers.has_model(self.name)


@dataclass(frozen=True, slots=True)
class ModelOfOllama:
    """A model, by a name that Ollama's clients have for it."""

    name: str

    @property
    def key(self) -> str:
        return f"{OLLAMA}:{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spellings(self.name))

    def is_offered(self, offers: Offers) -> bool:
        return OLLAMA in offers.formats and any(map(offers.has_model, spellings(self.name)))


@dataclass(frozen=True, slots=True)
class ModelOfV2:
    """A model of the v2 protocol, by its path. Without a version it is any."""

    name: str
    version: str = ""

    @property
    def key(self) -> str:
        return f"{V2}:{self.name}:{self.version}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def is_offered(self, offers: Offers) -> bool:
        return V2 in offers.formats and offers.has_handler(self.name, self.version)


@dataclass(frozen=True, slots=True)
class CapabilityOfV2:
    """A capability, by a query."""

    query: CapabilityQuery
    is_fuzzy: bool
    key: str
    names: tuple[str, ...] = ()

    def is_offered(self, offers: Offers) -> bool:
        return V2 in offers.formats and offers.satisfies(self.query, self.is_fuzzy)


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response that one replica has made, and alone may keep."""

    replica: str
    id: str
    names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"response:{self.id}"

    def is_offered(self, offers: Offers) -> bool:
        return offers.replica == self.replica


@dataclass(frozen=True, slots=True)
class AnyPredictor:
    """A replica's predictor, which has no name."""

    key: str = PREDICTIONS
    names: tuple[str, ...] = ()

    def is_offered(self, offers: Offers) -> bool:
        return PREDICTIONS in offers.formats


def format_of(path: ForwardedPath) -> str:
    """Returns the format that a path of a generating dialect belongs to."""
    if path.is_anthropic:
        return ANTHROPIC
    if not path.is_local:
        return UPSTREAM
    is_openai = path.path.startswith("/v1/") or path.tag in _OPENAI_TAGS or path.path == "/completions"
    return OPENAI if is_openai else LLAMACPP


def by_path(method: str, path: str) -> PeerTarget | None:
    """Returns what a request is for if its path says so; None if that is for the body to say, or for nobody."""
    if (match := _V2_PATH.fullmatch(path)) is not None:
        name, version, action = match.groups()
        is_read = action in _V2_READS
        is_known = method == ("GET" if is_read else "POST")
        return ModelOfV2(name, version or "") if is_known else None
    if method == "GET" and (match := _MODEL_PATH.fullmatch(path)) is not None:
        return ModelOfDialect(OPENAI, match[1])
    if method in ("POST", "PUT", "GET", "DELETE") and _PREDICTIONS_PATH.fullmatch(path):
        return AnyPredictor()
    return None


def kept_id(path: str) -> str:
    """Returns the id of the response that a path asks about; empty where it asks about none."""
    match = _KEPT_PATH.fullmatch(path)
    return "" if match is None else match[1]


def dialect_path(method: str, path: str) -> ForwardedPath | None:
    """Returns the path of a generating dialect, whose body names the model; None for any other."""
    return BY_PATH.get(path) if method == "POST" else None


_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})


class QueryBody(msgspec.Struct):
    """Holds the members of a body that say which capability it asks for."""

    capability: dict[str, Any] = {}
    fuzzy: bool | msgspec.UnsetType = msgspec.UNSET


_query_decoder = msgspec.json.Decoder(QueryBody)


@dataclass(slots=True)
class RequestBody:
    """A request with its body as it was sent; None until somebody reads it."""

    request: Request
    data: bytes | None


class TargetFinder:
    """Finds what requests are for. Reads the bodies that nobody has read, where they may say it."""

    def __init__(self, bodies: BodyReader, max_body_bytes: int) -> None:
        self._bodies = bodies
        self._max_body_bytes = max_body_bytes

    def find(self, body: RequestBody) -> PeerTarget | None:
        """Returns what a request is for; None if it names nothing that a peer could serve. Waits for its body.

        Raises Refused for one that cannot be read.
        """
        incoming = body.request
        method, path = incoming.method, incoming.path
        if (target := by_path(method, path)) is not None:
            return target
        if (dialect := dialect_path(method, path)) is not None:
            model = peek(self._text_of(body), reads_prompt=False).model
            return None if model is None else ModelOfDialect(format_of(dialect), model)
        if method == "POST" and path in _OLLAMA_PATHS:
            name = peek(self._text_of(body), reads_prompt=False).model
            return None if name is None else ModelOfOllama(name)
        return self._capability(body) if method == "POST" and path == CAPABILITY_PATH else None

    def previous_response(self, body: RequestBody) -> str:
        """Returns the id of the response that a request goes on from; empty for none. Waits and raises as `find`."""
        return peek(self._text_of(body), reads_prompt=False).previous_response

    def body_of(self, body: RequestBody) -> bytes:
        """Returns the body as it was sent. Waits for it if nobody has read it."""
        if body.data is None:
            is_empty = body.request.method in _WITHOUT_BODY
            body.data = b"" if is_empty else self._bodies.read_as_sent(body.request, self._max_body_bytes)
            self._bodies.take_kept(body.request)
        return body.data

    def _text_of(self, body: RequestBody) -> bytes:
        return self._bodies.read_again(body.request, self.body_of(body), self._max_body_bytes)

    def _capability(self, body: RequestBody) -> PeerTarget:
        headers = body.request.headers
        text = self._text_of(body)
        length = headers.get(LENGTH_HEADER, "")
        if length.isascii() and length.isdigit() and len(length) <= 12:
            text = text[: int(length)]
        decoded = decode_unscanned(text, _query_decoder)
        asked = parse_capability(headers)
        query = {**asked.query, **decoded.capability}
        is_fuzzy = asked.is_fuzzy if decoded.fuzzy is msgspec.UNSET else decoded.fuzzy
        return capability_target(query, is_fuzzy)


def capability_target(query: Mapping[str, object], is_fuzzy: bool) -> PeerTarget:
    """Returns what a query for handlers asks for. Raises Refused for a wrong one."""
    try:
        key = msgspec.json.encode(query, order="sorted").decode()
    except (TypeError, RecursionError):
        raise Refused("capability: the query is too deep", "capability") from None
    return CapabilityOfV2(parse_query(query), is_fuzzy, key)
