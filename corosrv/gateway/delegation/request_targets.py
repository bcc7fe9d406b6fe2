"""Finds what the request at hand is for: by its path, or by what its body names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from flask import Request

from corosrv.base.errors import Refused
from corosrv.dialects.kserve.binary_tail import LENGTH_HEADER
from corosrv.dialects.kserve.capability_headers import parse_capability
from corosrv.formats.bodies import decode_unscanned
from corosrv.gateway.delegation.targets import (
    CAPABILITY_PATH,
    CapabilityOfV2,
    ModelOfDialect,
    PeerTarget,
    by_path,
    dialect_path,
    format_of,
)
from corosrv.gateway.forwarding.peek import peek
from corosrv.web.http.body_reader import BodyReader
from corosrv.workers.dispatch.capability import parse_query

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
        return self._capability(body) if method == "POST" and path == CAPABILITY_PATH else None

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
        try:
            key = msgspec.json.encode(query, order="sorted").decode()
        except (TypeError, RecursionError):
            raise Refused("capability: the query is too deep", "capability") from None
        return CapabilityOfV2(parse_query(query), is_fuzzy, key)
