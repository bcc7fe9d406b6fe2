"""The endpoints over functions in a real server: `gunicorn -k gevent tests.dialects.kserve.served:application`."""

from __future__ import annotations

import os

from flask import Response

from corosrv.web.http import front
from corosrv.web.http.connection import ClientLimits
from corosrv.web.http.reply import json_response
from tests.dialects.kserve.app import make_app
from tests.dialects.kserve.models import make_worker

front.adopt(ClientLimits())
_worker = make_worker()
application = make_app(_worker, max_body_bytes=64 << 20, ping_interval=float(os.environ.get("PING_SECONDS", "0.3")))


@application.get("/counts")
def counts() -> Response:
    """Tells how many calls run, and how many were cancelled."""
    return json_response({"running": _worker.n_running, "cancelled": _worker.n_cancelled})
