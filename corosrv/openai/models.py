"""The list of models."""

from __future__ import annotations

from typing import Any

from corosrv.errors import ModelNotFound
from corosrv.jobs import ModelCard, Worker


def listing(worker: Worker) -> dict[str, Any]:
    """GET /v1/models."""
    return {"object": "list", "data": [_describe(card) for card in _cards(worker)]}


def one(worker: Worker, name: str) -> dict[str, Any]:
    """GET /v1/models/{id}; knows aliases too. Raises ModelNotFound."""
    for card in _cards(worker):
        if name in (card.id, *card.aliases):
            return _describe(card)
    raise ModelNotFound(name)


def _cards(worker: Worker) -> tuple[ModelCard, ...]:
    cards = worker.models()
    if not cards:
        worker.check()  # says why
    return cards


def _describe(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "corosrv",
        "aliases": list(card.aliases),
        "tags": list(card.tags),
        "status": _status(card),
        "meta": card.meta,
    }


def _status(card: ModelCard) -> dict[str, Any]:
    """As llama-server's router says it: a model that failed is an unloaded one with a mark."""
    if card.status == "failed":
        return {"value": "unloaded", "failed": True}
    return {"value": card.status}
