"""Lists the models that peers announce beside those that are served here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corosrv.gateway.delegation.announcement import ANTHROPIC, LLAMACPP, OPENAI, UPSTREAM
from corosrv.gateway.delegation.roster import PeerRecord
from corosrv.gateway.forwarding import listing

_GENERATING = frozenset({OPENAI, ANTHROPIC, LLAMACPP, UPSTREAM})


def models_of_peers(peers: Iterable[PeerRecord]) -> dict[str, str]:
    """Returns the ids of the replicas that serve models, by the models' names; of several, the first one's."""
    models: dict[str, str] = {}
    for peer in peers:
        if peer.offers is not None and peer.offers.formats & _GENERATING:
            for name in peer.offers.models:
                models.setdefault(name, peer.id)
    return models


def with_peers(local: dict[str, Any] | None, models: dict[str, str], created: int) -> dict[str, Any]:
    """Makes the answer of GET /v1/models; each model of a peer names the `replica` that serves it.

    `local`: the same answer for the models that are served here; None if there are none. `created`: Unix time.
    """
    answer = listing.listing(models, created, local)
    own = {id(model) for model in (local or {}).get("data", ())}
    for model in answer["data"]:
        if id(model) not in own and model["id"] in models:
            model["replica"] = models[model["id"]]
    return answer
