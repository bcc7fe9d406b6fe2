"""Says what a request is for, so that a replica can be found which serves that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from corosrv.gateway.delegation.announcement import ANTHROPIC, LLAMACPP, OPENAI, PREDICTIONS, UPSTREAM, V2, Offers
from corosrv.gateway.forwarding.paths import BY_PATH, ForwardedPath
from corosrv.workers.dispatch.capability import CapabilityQuery

CAPABILITY_PATH = "/v2/capabilities/infer"

_OPENAI_TAGS = frozenset({"Chat", "Responses", "Embeddings"})
_V2_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|generate|generate_stream|ready))?")
_V2_READS = frozenset({None, "ready"})
_MODEL_PATH = re.compile(r"/v1/models/(.+)")
_PREDICTIONS_PATH = re.compile(r"/predictions(?:/.+)?")


class PeerTarget(Protocol):
    """Names the thing that a request is for."""

    @property
    def key(self) -> str:
        """Names the target, for records and for the log."""

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

    def is_offered(self, offers: Offers) -> bool:
        return self.format in offers.formats and offers.has_model(self.name)


@dataclass(frozen=True, slots=True)
class ModelOfV2:
    """A model of the v2 protocol, by its path. Without a version it is any."""

    name: str
    version: str = ""

    @property
    def key(self) -> str:
        return f"{V2}:{self.name}:{self.version}"

    def is_offered(self, offers: Offers) -> bool:
        return V2 in offers.formats and offers.has_handler(self.name, self.version)


@dataclass(frozen=True, slots=True)
class CapabilityOfV2:
    """A capability, by a query."""

    query: CapabilityQuery
    is_fuzzy: bool
    key: str

    def is_offered(self, offers: Offers) -> bool:
        return V2 in offers.formats and offers.satisfies(self.query, self.is_fuzzy)


@dataclass(frozen=True, slots=True)
class AnyPredictor:
    """A replica's predictor, which has no name."""

    key: str = PREDICTIONS

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


def dialect_path(method: str, path: str) -> ForwardedPath | None:
    """Returns the path of a generating dialect, whose body names the model; None for any other."""
    return BY_PATH.get(path) if method == "POST" else None
