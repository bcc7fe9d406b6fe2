"""Decides, for a server that has models of its own beside upstreams, where a request goes."""

from __future__ import annotations

from typing import Any, Protocol

from corosrv.base.errors import ModelNotFound
from corosrv.fleet.upstreams.pool import UpstreamPool
from corosrv.fleet.upstreams.upstream import UpstreamState


class LocalModels(Protocol):
    """The models that are served here."""

    def names(self) -> frozenset[str]:
        """Returns their names and aliases."""

    def is_crowded(self, name: str) -> bool:
        """Tells whether a request would wait for a slot behind more others than it has to."""

    def listing(self) -> dict[str, Any]:
        """Makes the answer of GET /v1/models, also while they are loading."""


class Choice:
    """Chooses between a model that is served here and upstreams."""

    def __init__(self, pool: UpstreamPool, local: LocalModels, *, is_strict: bool) -> None:
        """`is_strict`: an unknown name is an error even if there is one model alone."""
        self._pool = pool
        self._local = local
        self._is_strict = is_strict

    def stays(self, model: str | None) -> bool:
        """Tells whether a request for this model is answered here.

        One without a model is. Raises ModelNotFound for a name that nobody has where several models are served.
        """
        local, remote = self._local.names(), self._pool.models()
        if model is None or model in local:
            return model not in remote or not (self._local.is_crowded(model) and self._has_room(model))
        if model not in remote and (self._is_strict or not local.issuperset(remote)):
            raise ModelNotFound(model)
        return model not in remote

    def _has_room(self, model: str) -> bool:
        """Tells whether an upstream would take a request for this model at once."""
        return any(
            upstream.state is UpstreamState.READY and upstream.permits.available and model in upstream.models
            for upstream in self._pool.upstreams
        )
