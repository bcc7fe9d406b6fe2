"""Jobs know who asked for them."""

from __future__ import annotations

from dataclasses import replace

from flask import g

from corosrv.jobs import AnyJob, Job


def asked_for(job: AnyJob) -> AnyJob:
    """The job with the caller of the request at hand."""
    caller = g.get("corosrv_caller", "")
    return replace(job, caller=caller) if caller and isinstance(job, Job) else job
