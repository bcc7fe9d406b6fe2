"""Who asked: the caller of a request goes with its job."""

import pytest
from flask import Flask, g

from corosrv.http.callers import with_caller
from corosrv.jobs import AnyJob, EmbedJob, Job, RerankJob, Text

JOBS: list[AnyJob] = [Job((Text("a"),)), EmbedJob((Text("a"),)), RerankJob("a", ("b",))]
each_kind = pytest.mark.parametrize("job", JOBS, ids=lambda job: type(job).__name__)


@each_kind
def test_a_job_of_any_kind_has_the_caller_of_its_request(job: AnyJob):
    with Flask("tests").test_request_context():
        g.corosrv_caller = "key-1"

        assert with_caller(job).terms.caller == "key-1"


@each_kind
def test_a_job_is_the_same_where_no_keys_are_asked_for(job: AnyJob):
    with Flask("tests").test_request_context():
        assert with_caller(job) is job
