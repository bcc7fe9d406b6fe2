"""Gathers what a server serves itself, as its peers are to know it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from corosrv.contracts.jobs.infer import InferWorker
from corosrv.gateway.delegation.announcement import ANTHROPIC, LLAMACPP, OLLAMA, OPENAI, PREDICTIONS, UPSTREAM, V2


class HasNames(Protocol):
    """A pool of models that are served here."""

    def names(self) -> frozenset[str]:
        """Returns all names, aliases among them."""


class HasModels(Protocol):
    """A pool of upstreams."""

    def models(self) -> Sequence[str]:
        """Returns the names of the models that the upstreams serve."""


class ServerOffers:
    """Reads what the parts of a server serve, whenever a peer asks."""

    def __init__(
        self, models: HasNames | None, upstreams: HasModels | None, calls: InferWorker | None, *, has_predictor: bool
    ) -> None:
        """`calls`: what runs calls of the v2 protocol; None if it is not spoken."""
        self._models = models
        self._upstreams = upstreams
        self._calls = calls
        self._has_predictor = has_predictor

    def formats(self) -> Iterable[str]:
        if self._models is not None or self._upstreams is not None:
            yield from (OPENAI, ANTHROPIC, LLAMACPP)
        if self._models is not None:
            yield OLLAMA
        if self._upstreams is not None:
            yield UPSTREAM
        if self._calls is not None:
            yield V2
        if self._has_predictor:
            yield PREDICTIONS

    def models(self) -> Iterable[str]:
        if self._models is not None:
            yield from sorted(self._models.names())
        if self._upstreams is not None:
            yield from self._upstreams.models()

    def calls(self) -> InferWorker | None:
        return self._calls
