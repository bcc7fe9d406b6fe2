"""Shows the objects that calls of handlers pass to each other, over the management API."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint

from corosrv.workers.objects import ObjectStore

MAX_LISTED = 1000  # objects, those read last


def blueprint(objects: ObjectStore) -> Blueprint:
    """Makes the routes."""
    api = Blueprint("objects", __name__)

    @api.get("/v1/objects")
    def all_objects() -> dict[str, Any]:
        refs = [msgspec.to_builtins(ref) for ref in objects.refs()[-MAX_LISTED:]]
        return {"objects": refs, "stats": msgspec.to_builtins(objects.stats)}

    return api
