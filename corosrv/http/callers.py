"""Names the caller of a request, so that prompts and stored responses of one caller are kept from all others."""

from __future__ import annotations

from dataclasses import replace

from flask import g

from corosrv.http.lean_flask import current
from corosrv.jobs import AnyJob


def caller() -> str:
    """Returns a name for the key of the request at hand, not the key itself; empty where no keys are asked for."""
    return str(current(g).get("corosrv_caller", ""))


def with_caller(job: AnyJob) -> AnyJob:
    """Returns the job with the caller of the request at hand, whatever kind of job it is."""
    return replace(job, terms=replace(job.terms, caller=name)) if (name := caller()) else job
