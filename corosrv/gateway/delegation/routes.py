"""Answers peers that ask what this replica serves."""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response

from corosrv.base.errors import Unauthorized
from corosrv.gateway.delegation.announcement import PATH, Announcement
from corosrv.gateway.delegation.guard import current_trip
from corosrv.web.http.openapi import operation
from corosrv.web.http.reply import json_response


def blueprint(announce: Callable[[], Announcement]) -> Blueprint:
    """Makes the route. `announce`: says what this replica serves now."""
    routes = Blueprint("delegation", __name__)

    @routes.get(PATH)
    @operation(
        "Server",
        "Announce what this replica serves",
        "For its peers, which carry their common token (COROSRV_PEER_TOKEN) as X-Corosrv-Token.",
        answer=Announcement,
    )
    def announcement() -> Response:
        if current_trip() is None:
            raise Unauthorized("what a replica serves is for its peers, which have its COROSRV_PEER_TOKEN")
        return json_response(announce())

    return routes
