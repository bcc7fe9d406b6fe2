"""Whose share a request takes, and what goes before it, as an inference gateway says."""

from typing import Any

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Terms
from corosrv.contracts.jobs.terms import Flow
from corosrv.web.http.terms import placed
from corosrv.web.inference_gateway import FAIRNESS_ID, GatewayRules, InferenceGateway


def gateway(divides: bool = True) -> InferenceGateway:
    objectives = {"premium": 10, "usual": 0, "batch": -10, "last": -20}
    return InferenceGateway(GatewayRules(("10.0.0.0/8", "::1"), objectives, divides))


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
    terms = flow_terms(gateway().flow_of(environ("10.1.2.3", objective=objective)))

    assert (terms.tier, terms.priority) == (tier, priority)


def test_fairness_ids_of_the_gateway_have_a_share_each_and_keep_their_caller():
    flows = [
        gateway().flow_of(environ("::1", fairness_id=tenant, objective=objective))
        for tenant in ("a", "b")
        for objective in ("usual", "batch")  # the tier is one of all that an owner has
    ]

    terms = [flow_terms(flow) for flow in flows]

    assert len({each.owner for each in terms} | {""}) == 5
    assert {each.caller for each in terms} == {""}


@pytest.mark.parametrize("address", ["11.0.0.1", "fe80::1", ""])
def test_headers_that_are_not_of_the_gateway_change_nothing_and_go_no_further(address: str):
    sent = environ(address, fairness_id="a", objective="premium")

    terms = flow_terms(gateway().flow_of(sent))

    assert (terms.owner, terms.tier, terms.priority) == ("", 1, 5)  # behind premium, as a request that says nothing
    assert sent == {"REMOTE_ADDR": address}


def test_a_request_that_says_nothing_stands_behind_the_better_objectives():
    assert flow_terms(gateway().usual_flow) == Terms(tier=1)
    assert InferenceGateway(GatewayRules(("10.0.0.0/8",), {"batch": -1})).usual_flow is None


def test_without_a_gateway_its_headers_count_from_nowhere():
    sent = environ("127.0.0.1", fairness_id="a", objective="premium")

    assert InferenceGateway(GatewayRules()).flow_of(sent) is None
    assert InferenceGateway(GatewayRules(("*",))).flow_of(environ("", fairness_id="a")) == Flow("a", 0)


def test_with_keys_of_their_own_callers_keep_share_and_tier_and_an_objective_orders_their_requests():
    found = gateway(divides=False).flow_of(environ("10.0.0.1", fairness_id="a", objective="batch"))

    terms = flow_terms(found, caller="key", tier=5)

    assert (terms.owner, terms.tier, terms.priority) == ("", 5, 6)
    assert gateway(divides=False).usual_flow is None


def test_a_fairness_id_is_bounded():
    assert gateway().flow_of(environ("10.0.0.1", fairness_id="a" * 128)) is not None
    with pytest.raises(Refused, match=FAIRNESS_ID):
        gateway().flow_of(environ("10.0.0.1", fairness_id="a" * 129))


def test_an_address_of_the_gateway_counts_as_sockets_for_both_kinds_of_addresses_write_it():
    assert gateway().flow("::ffff:10.1.2.3", "a", "") == Flow("a", 1)
    assert gateway().flow("::ffff:11.1.2.3", "a", "") == Flow("", 1)
