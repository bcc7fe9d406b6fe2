"""Lists models: those of upstreams, and those that are served here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

OWNER = "corosrv"


def listing(names: Iterable[str], created: int, local: dict[str, Any] | None = None) -> dict[str, Any]:
    """Makes the answer of GET /v1/models; `models` is for clients of Ollama, as llama-server has it.

    `created`: Unix time. `local`: the same answer for the models that are served here, which come first.
    """
    local = local or {"data": [], "models": []}
    known = {name for model in local["data"] for name in (model["id"], *model["aliases"])}
    others = [name for name in names if name not in known]
    return {
        "object": "list",
        "data": [*local["data"], *(describe(name, created) for name in others)],
        "models": [*local["models"], *({"name": name, "model": name, "type": "model"} for name in others)],
    }


def describe(name: str, created: int) -> dict[str, Any]:
    """Describes a model of upstreams, of which no more than its name is known."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        "aliases": [],
        "tags": [],
        "status": {"value": "loaded"},
        "meta": {},
    }
