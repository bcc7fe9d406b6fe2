"""The terms of a request's job: who asked, how urgent it is, and until when."""

from contextlib import AbstractContextManager
from typing import Any

import pytest
from flask import Flask, g

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Terms
from corosrv.web.http.terms import request_terms


def asked(**headers: str) -> AbstractContextManager[Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Flask("tests").test_request_context(headers=named)


def test_a_request_that_says_nothing_has_the_usual_terms():
    with asked():
        assert request_terms() == Terms()


def test_terms_have_the_caller_and_the_id_of_their_request():
    with asked():
        g.corosrv_caller, g.corosrv_request_id = "key-1", "id-1"

        assert request_terms() == Terms(caller="key-1", request_id="id-1")


@pytest.mark.parametrize(
    ("of_body", "header", "priority"),
    [(None, "1", 1), (0, "1", 1), (5, "1", 5), (9, "1", 9), (3, "0", 3), (None, "0", 5), (0, "9", 9), (None, " 2 ", 2)],
)
def test_the_priority_of_a_body_goes_before_that_of_the_header(of_body: int | None, header: str, priority: int):
    with asked(X_Priority=header):
        assert request_terms(of_body).priority == priority


def test_a_deadline_counts_from_the_arrival_of_its_request():
    with asked(X_Request_Timeout_Ms="1500"):
        g.corosrv_began = 100.0

        assert request_terms().deadline == 101.5


@pytest.mark.parametrize(("header", "deadline"), [("1500", 101.0), ("500", 100.5)])
def test_of_two_deadlines_the_earlier_one_counts(header: str, deadline: float):
    with asked(X_Request_Timeout_Ms=header):
        g.corosrv_began = 100.0

        assert request_terms(timeout_s=1.0).deadline == deadline


@pytest.mark.parametrize("header", ["X-Priority", "X-Request-Timeout-Ms"])
def test_a_header_that_is_no_number_is_refused_by_name(header: str):
    with asked(**{header: "soon"}), pytest.raises(Refused, match=header):
        request_terms()
