"""Makes the JSON values by which operators see peers."""

from __future__ import annotations

from typing import Any

from corosrv.gateway.delegation.roster import PeerRecord


def peer_view(peer: PeerRecord, now: float) -> dict[str, Any]:
    """Shows a peer: its state, its last answer, and what it announces. `now`: of time.monotonic()."""
    offers = peer.offers
    return {
        "url": peer.url,
        "id": peer.id or None,
        "state": peer.state(now).value,
        "last_answer": peer.last_answer,
        "heard_ms": None if offers is None else round((now - peer.heard_at) * 1000),
        "in_flight": peer.in_flight,
        "formats": [] if offers is None else sorted(offers.formats),
        "models": [] if offers is None else list(offers.models),
        "handlers": [] if offers is None else [_handler_name(name, version) for name, version in offers.models_of_v2()],
        "capabilities": [] if offers is None else list(offers.capabilities()),
    }


def _handler_name(name: str, version: str) -> str:
    return f"{name}:{version}" if version else name
