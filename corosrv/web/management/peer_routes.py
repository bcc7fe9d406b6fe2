"""Shows the other replicas that answer for this one, over the management API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flask import Blueprint


def blueprint(replica_id: str, peer_views: Callable[[], Sequence[dict[str, Any]]]) -> Blueprint:
    """Makes the routes. `replica_id`: of this server; `peer_views`: shows each peer."""
    api = Blueprint("peers", __name__)

    @api.get("/v1/peers")
    def all_peers() -> dict[str, Any]:
        return {"replica": replica_id, "peers": peer_views()}

    return api
