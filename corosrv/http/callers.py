"""Who asked: what one caller leaves behind is for no other."""

from __future__ import annotations

from dataclasses import replace

from flask import g

from corosrv.jobs import AnyJob, Job


def caller() -> str:
    """A name for the key of the request at hand, not the key itself; empty where no keys are asked for."""
    return str(g.get("corosrv_caller", ""))


def asked_for(job: AnyJob) -> AnyJob:
    """The job with its caller."""
    return replace(job, caller=name) if (name := caller()) and isinstance(job, Job) else job
