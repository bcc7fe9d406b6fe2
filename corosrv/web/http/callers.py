"""Names the caller of a request, so that prompts and stored responses of one caller are kept from all others."""

from __future__ import annotations

from flask import g

from corosrv.web.http.lean_flask import current


def caller() -> str:
    """Returns a name for the key of the request at hand, not the key itself; empty where no keys are asked for."""
    return str(current(g).get("corosrv_caller", ""))
