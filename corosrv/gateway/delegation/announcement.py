"""The announcement by which replicas tell each other who they are and what they serve: read, written, and answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from flask import Blueprint, Response

from corosrv.base.errors import Unauthorized
from corosrv.contracts.jobs.infer import Scalar
from corosrv.contracts.settings.fleet import REPLICA_ID
from corosrv.gateway.delegation.trip import current_trip
from corosrv.web.http.openapi import operation
from corosrv.web.http.reply import json_response
from corosrv.workers.dispatch.capability import CapabilityQuery

PATH = "/v1/replica"  # where a replica announces what it serves
MAX_BYTES = 4 << 20
MAX_OFFERS = 1000  # models, and as many handlers, of one replica
MAX_NAME = 512  # characters

OPENAI = "openai"
ANTHROPIC = "anthropic"
LLAMACPP = "llamacpp"
OLLAMA = "ollama"
UPSTREAM = "upstream"  # paths that upstreams alone answer, as SGLang's and vLLM's own
V2 = "v2"
PREDICTIONS = "predictions"
_UNVERSIONED = "1"  # by which v2's clients may call a handler without versions


class BadAnnouncement(ValueError):
    """The answer of a peer is no announcement."""


class OfferedHandler(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names a model of the v2 protocol, or a capability."""

    name: str
    version: str = ""
    capability: dict[str, Scalar] | None = None


class Announcement(msgspec.Struct, frozen=True):
    """Says what a replica serves itself, by whichever protocol. What its own peers serve is not among it."""

    replica: str
    formats: list[str] = []
    models: list[str] = []  # of generating dialects
    handlers: list[OfferedHandler] = []


_decoder = msgspec.json.Decoder(Announcement)


def parse_announcement(data: bytes) -> Announcement:
    """Reads an announcement; of more offers than MAX_OFFERS, the first are taken. Raises BadAnnouncement."""
    try:
        announcement = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadAnnouncement("it did not answer as a replica does") from None
    if not REPLICA_ID.fullmatch(announcement.replica):
        raise BadAnnouncement("its id is none")
    return Announcement(
        announcement.replica,
        announcement.formats[:MAX_OFFERS],
        [name for name in announcement.models if _is_name(name)][:MAX_OFFERS],
        [handler for handler in announcement.handlers if _is_name(handler.name)][:MAX_OFFERS],
    )


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isprintable()


class Offers:
    """Answers whether a replica serves something, by what it has announced."""

    def __init__(self, announcement: Announcement) -> None:
        self.replica = announcement.replica
        self.formats = frozenset(announcement.formats)
        self.models = tuple(dict.fromkeys(announcement.models))
        self.handlers = tuple(announcement.handlers)
        self._models = frozenset(announcement.models)
        self._versions: dict[str, set[str]] = {}
        for handler in announcement.handlers:
            if handler.capability is None:
                self._versions.setdefault(handler.name, set()).add(handler.version)

    def has_model(self, name: str) -> bool:
        return name in self._models

    def has_handler(self, name: str, version: str) -> bool:
        """Tells whether there is a model of this name; `version`: an empty text is any."""
        versions = self._versions.get(name, set())
        return bool(versions) if not version else version in versions or (version == _UNVERSIONED and "" in versions)

    def satisfies(self, query: CapabilityQuery, is_fuzzy: bool) -> bool:
        """Tells whether a capability matches a query."""
        return any(query.matches(capability, is_fuzzy) for capability in self.capabilities())

    def models_of_v2(self) -> Iterable[tuple[str, str]]:
        """Returns the names and versions of its models of the v2 protocol."""
        return ((handler.name, handler.version) for handler in self.handlers if handler.capability is None)

    def capabilities(self) -> Iterable[dict[str, Scalar]]:
        return (handler.capability for handler in self.handlers if handler.capability is not None)


def blueprint(announce: Callable[[], Announcement]) -> Blueprint:
    """Makes the route. `announce`: says what this replica serves now."""
    routes = Blueprint("delegation", __name__)

    @routes.get(PATH)
    @operation(
        "Server",
        "Announce what this replica serves",
        "For its peers, which carry their common token (COROSRV_PEER_TOKEN) as X-Corosrv-Token.",
        answer=Announcement,
    )
    def announcement() -> Response:
        if current_trip() is None:
            raise Unauthorized("what a replica serves is for its peers, which have its COROSRV_PEER_TOKEN")
        return json_response(announce())

    return routes
