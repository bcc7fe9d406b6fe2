"""The terms of a request's job: who asked, how urgent it is, and until when."""

from contextlib import AbstractContextManager
from typing import Any

import pytest
from flask import Flask, g

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Terms
from corosrv.contracts.jobs.terms import Flow
from corosrv.web.http.terms import InferenceGateway, placed, request_terms


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


TENANT = "X-Gateway-Inference-Fairness-Id"


def gateway(divides: bool = True) -> InferenceGateway:
    objectives = {"premium": 10, "usual": 0, "batch": -10, "last": -20}
    return InferenceGateway(("10.0.0.0/8", "::1"), objectives, divides=divides)


def environ(address: str, **headers: str) -> dict[str, Any]:
    named = {f"HTTP_X_GATEWAY_INFERENCE_{name.upper()}": value for name, value in headers.items()}
    return {"REMOTE_ADDR": address, **named}


def flow_terms(found: Flow | None, **terms: Any) -> Terms:
    return placed(Terms(**terms), None, found)


@pytest.mark.parametrize(
    ("objective", "tier", "priority"),
    [("premium", 0, 4), ("usual", 1, 5), ("unheard-of", 1, 5), ("batch", 2, 6), ("last", 3, 7)],
)
def test_an_objective_of_the_gateway_ranks_a_request(objective: str, tier: int, priority: int):
    terms = flow_terms(gateway().flow(environ("10.1.2.3", objective=objective)))

    assert (terms.tier, terms.priority) == (tier, priority)


def test_fairness_ids_of_the_gateway_have_a_share_each_and_keep_their_caller():
    flows = [
        gateway().flow(environ("::1", fairness_id=tenant, objective=objective))
        for tenant in ("a", "b")
        for objective in ("usual", "batch")  # the tier is one of all that an owner has
    ]

    terms = [flow_terms(flow) for flow in flows]

    assert len({each.owner for each in terms} | {""}) == 5
    assert {each.caller for each in terms} == {""}


@pytest.mark.parametrize("address", ["11.0.0.1", "fe80::1", ""])
def test_headers_that_are_not_of_the_gateway_change_nothing_and_go_no_further(address: str):
    sent = environ(address, fairness_id="a", objective="premium")

    terms = flow_terms(gateway().flow(sent))

    assert (terms.owner, terms.tier, terms.priority) == ("", 1, 5)  # behind premium, as a request that says nothing
    assert sent == {"REMOTE_ADDR": address}


def test_a_request_that_says_nothing_stands_behind_the_better_objectives():
    assert flow_terms(gateway().usual_flow) == Terms(tier=1)
    assert InferenceGateway(("10.0.0.0/8",), {"batch": -1}).usual_flow is None


def test_without_a_gateway_its_headers_count_from_nowhere():
    sent = environ("127.0.0.1", fairness_id="a", objective="premium")

    assert InferenceGateway().flow(sent) is None
    assert InferenceGateway(("*",)).flow(environ("", fairness_id="a")) == Flow("a", 0)


def test_with_keys_of_their_own_callers_keep_share_and_tier_and_an_objective_orders_their_requests():
    found = gateway(divides=False).flow(environ("10.0.0.1", fairness_id="a", objective="batch"))

    terms = flow_terms(found, caller="key", tier=5)

    assert (terms.owner, terms.tier, terms.priority) == ("", 5, 6)
    assert gateway(divides=False).usual_flow is None


def test_a_fairness_id_is_bounded():
    assert gateway().flow(environ("10.0.0.1", fairness_id="a" * 128)) is not None
    with pytest.raises(Refused, match=TENANT):
        gateway().flow(environ("10.0.0.1", fairness_id="a" * 129))
