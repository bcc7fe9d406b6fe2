"""The list of models."""

from __future__ import annotations

from typing import Any

from corosrv.errors import ModelNotFound
from corosrv.jobs import ModelCard, Worker


def listing(worker: Worker) -> dict[str, Any]:
    """GET /v1/models."""
    worker.check()
    return {"object": "list", "data": [_describe(card) for card in worker.models()]}


def one(worker: Worker, name: str) -> dict[str, Any]:
    """GET /v1/models/{id}; knows aliases too. Raises ModelNotFound."""
    worker.check()
    for card in worker.models():
        if name in (card.id, *card.aliases):
            return _describe(card)
    raise ModelNotFound(name)


def _describe(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "corosrv",
        "aliases": list(card.aliases),
        "tags": list(card.tags),
        "meta": card.meta,
    }
