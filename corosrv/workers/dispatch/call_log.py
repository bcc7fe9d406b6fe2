"""Writes a line of log for each call that ended: what it asked, where it ran, how long it took, and how it ended."""

from __future__ import annotations

import json
import logging

from corosrv.base.errors import CorosrvError
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.traffic import outcome_of

log = logging.getLogger("corosrv.calls")

_TEXT = (
    "call %(id)s of %(key)s ended: %(outcome)s, worker %(worker)s (%(incarnation)d), %(attempts)d attempts, "
    "%(queue_ms).1f ms queued, %(service_ms).1f ms served, %(total_ms).1f ms in all"
)


def log_call(call: QueuedCall, error: CorosrvError | None, now: float, as_json: bool) -> None:
    """Writes the line of a call that ends now. Calls that went well are for the debug level."""
    level = logging.DEBUG if error is None else logging.INFO
    if not log.isEnabledFor(level):
        return
    served = 0.0 if call.started_at is None else now - call.started_at
    members = {
        "id": call.job.terms.request_id,
        "key": call.key,
        "outcome": outcome_of(error),
        "worker": "-" if call.worker is None else call.worker.id,
        "incarnation": 0 if call.worker is None else call.worker.incarnation,
        "attempts": call.n_attempts,
        "queue_ms": round(1000 * call.waited, 1),
        "service_ms": round(1000 * served, 1),
        "total_ms": round(1000 * (now - call.arrived), 1),
    }
    log.log(level, "%s", json.dumps({"event": "call_ended", **members}) if as_json else _TEXT % members)
