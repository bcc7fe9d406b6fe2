"""Which handlers are known, and who serves them."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Conflict, NotFound, Refused, Unavailable
from corosrv.contracts.jobs.infer import CapabilityTarget, ModelTarget
from corosrv.formats.tensors import TensorSpec
from corosrv.workers.dispatch.entries import LINGER, HandlerEntry, PoolStanding
from corosrv.workers.dispatch.registry import Registry, check_ready, look_up
from tests.workers.dispatch.hosts import FakeHost, capability_card, card

CAN_START = PoolStanding(can_start=True)


@pytest.fixture
def registry() -> Registry:
    return Registry()


def model(registry: Registry, name: str = "add", version: str = "") -> HandlerEntry:
    return look_up(registry, ModelTarget(name, version))


def match(registry: Registry, is_fuzzy: bool = False, prefer: dict[str, float] | None = None, **query: object) -> str:
    return look_up(registry, CapabilityTarget(query, prefer or {}, is_fuzzy)).card.name


def hosts_of(entry: HandlerEntry) -> list[tuple[str, int]]:
    return [(group.host.id, group.host.incarnation) for group in entry.groups]


def test_hosts_of_one_model_share_its_key(registry: Registry):
    registry.add(FakeHost("p/0", [card()]), 0)
    registry.add(FakeHost("p/1", [card()]), 0)

    assert hosts_of(model(registry)) == [("p/0", 1), ("p/1", 1)]


def test_removing_a_host_leaves_those_of_others(registry: Registry):
    first, second = FakeHost("p/0", [card()]), FakeHost("p/1", [card()])
    registry.add(first, 0)
    registry.add(second, 0)

    assert registry.remove(first, 0)

    assert hosts_of(model(registry)) == [("p/1", 1)]


def test_a_newer_incarnation_takes_the_place_of_the_older_in_one_step(registry: Registry):
    registry.add(FakeHost("p/0", [card("add"), card("old")]), 0)
    registry.add(FakeHost("p/0", [card("add"), card("new")], incarnation=2), 0)

    assert hosts_of(model(registry)) == [("p/0", 2)]
    assert hosts_of(model(registry, "new")) == [("p/0", 2)]
    assert not model(registry, "old").groups
    assert registry.purge(LINGER) == ["model:old:"]


@pytest.mark.parametrize("incarnation", [1, 2])
def test_an_old_incarnation_changes_nothing(registry: Registry, incarnation: int):
    current = FakeHost("p/0", [card("add")], incarnation=2)
    registry.add(current, 0)
    late = FakeHost("p/0", [card("other")], incarnation=incarnation)

    assert not registry.add(late, 0)
    assert incarnation == 2 or not registry.remove(late, 0)

    assert hosts_of(model(registry)) == [("p/0", 2)]
    assert not registry.versions("other")


def test_an_old_incarnation_has_no_groups_any_more(registry: Registry):
    old = FakeHost("p/0", [card()])
    registry.add(old, 0)
    registry.add(new := FakeHost("p/0", [card()], incarnation=2), 0)

    assert registry.groups_of(old) == ()
    assert [group.host for group in registry.groups_of(new)] == [new]


def test_a_handler_that_one_host_offers_twice_is_served_once(registry: Registry, caplog: pytest.LogCaptureFixture):
    registry.add(FakeHost("p/0", [card(), card()]), 0)

    assert hosts_of(model(registry)) == [("p/0", 1)]
    assert "model:add: of worker p/0 is offered twice; the first is served" in caplog.text


def test_a_host_that_was_removed_is_not_removed_again(registry: Registry):
    host = FakeHost("p/0", [card()])
    registry.add(host, 0)
    registry.remove(host, 0)

    assert not registry.remove(host, 0)


def test_an_unknown_model_is_not_found(registry: Registry):
    registry.add(FakeHost("p/0", [card("add", "1"), card("add", "10")]), 0)

    with pytest.raises(NotFound, match="'sub' does not exist"):
        model(registry, "sub")
    with pytest.raises(NotFound, match="no version '2'; it has 1, 10"):
        model(registry, "add", "2")


def test_a_version_matches_exactly_and_none_gets_the_default(registry: Registry):
    registry.add(FakeHost("p/0", [card("add", "v9"), card("add", "v10")]), 0)

    assert model(registry, "add", "v9").card.version == "v9"
    assert model(registry, "add").card.version == "v10"


def test_a_model_without_versions_is_found_by_the_version_that_the_index_lists_it_under(registry: Registry):
    registry.add(FakeHost("p/0", [card("add")]), 0)

    assert model(registry, "add", "1").card.version == ""
    with pytest.raises(NotFound):
        model(registry, "add", "2")


def test_the_default_is_a_version_that_is_still_offered(registry: Registry):
    newer = FakeHost("q/0", [card("add", "2")])
    registry.add(FakeHost("p/0", [card("add", "1")]), 0)
    registry.add(newer, 0)
    registry.remove(newer, 0)

    assert model(registry).card.version == "1"
    assert model(registry, "add", "2").card.version == "2"


def test_a_model_whose_workers_left_is_unavailable_for_a_minute_and_then_unknown(registry: Registry):
    host = FakeHost("p/0", [card()])
    registry.add(host, 0)
    registry.remove(host, 100)

    assert registry.purge(100 + LINGER - 1) == []
    with pytest.raises(Unavailable) as refusal:
        check_ready(model(registry), 0.0)
    assert refusal.value.retry_after

    assert registry.purge(100 + LINGER) == ["model:add:"]
    with pytest.raises(NotFound):
        model(registry)


def test_each_entry_lingers_for_its_own_minute_whatever_else_changes(registry: Registry):
    first, second = FakeHost("p/0", [card("add", "1"), capability_card(type="t")]), FakeHost("q/0", [card("add", "2")])
    registry.add(first, 0)
    registry.add(second, 0)
    registry.remove(first, 10)
    registry.remove(second, 40)  # does not begin the minute of the first anew

    assert registry.purge(10 + LINGER) == ["model:add:1", 'cap:{"type":"t"}']

    assert list(registry.versions("add")) == ["2"]
    assert registry.purge(40 + LINGER) == ["model:add:2"]
    assert not registry.versions("add")


@pytest.mark.parametrize("comes", ["host", "pool"])
def test_what_comes_back_within_its_minute_is_not_forgotten(registry: Registry, comes: str):
    host = FakeHost("p/0", [card()])
    registry.add(host, 0)
    registry.remove(host, 0)

    if comes == "host":
        registry.add(FakeHost("p/0", [card()], incarnation=2), 10)
    else:
        registry.expect("p", [card()], CAN_START, 10)

    assert registry.purge(LINGER) == []
    check_ready(model(registry), 0.0)


def test_a_model_is_known_while_its_pool_exists(registry: Registry):
    registry.expect("p", [card()], PoolStanding(can_start=False, reason="the pool p is crashlooping"), 0)

    assert registry.purge(1000) == []
    with pytest.raises(Unavailable, match="crashlooping"):
        check_ready(model(registry), 0.0)

    registry.forget("p", 1000)
    assert registry.purge(1000 + LINGER) == ["model:add:"]


def test_a_pool_that_can_start_lets_calls_wait(registry: Registry):
    registry.expect("p", [card()], CAN_START, 0)

    check_ready(model(registry), 0.0)
    assert model(registry).state() == "LOADING"


def test_what_a_pool_no_longer_offers_is_forgotten(registry: Registry):
    registry.expect("p", [card("add"), card("sub")], CAN_START, 0)
    registry.expect("p", [card("add")], CAN_START, 5)

    assert registry.purge(5 + LINGER) == ["model:sub:"]


def test_a_host_is_ready_until_it_drains_or_its_slots_are_poisoned(registry: Registry):
    host = FakeHost("p/0", [card()])
    registry.add(host, 0)
    entry = model(registry)

    assert entry.is_ready
    host.is_draining = True
    assert not entry.is_ready
    host.is_draining = False
    host.permits.poison(0, "hung")
    assert not entry.is_ready


def test_a_host_that_declares_other_tensors_is_not_served(registry: Registry, caplog: pytest.LogCaptureFixture):
    registry.add(FakeHost("p/0", [card(inputs=[TensorSpec("a", "INT32", [1])])]), 0)
    registry.add(FakeHost("p/1", [card(inputs=[TensorSpec("a", "FP32", [1])]), card("sub")]), 0)

    assert hosts_of(model(registry)) == [("p/0", 1)]
    assert hosts_of(model(registry, "sub")) == [("p/1", 1)]
    assert "p/1 is not served: its inputs differ" in caplog.text


def test_declarations_may_change_once_no_worker_has_the_old_ones(registry: Registry):
    old, new = card(), card(inputs=[TensorSpec("a", "FP32", [1])])
    registry.add(FakeHost("p/0", [old]), 0)
    registry.add(FakeHost("p/0", [new], incarnation=2), 0)

    assert model(registry).card == new


def test_a_capability_without_a_match_is_not_found_however_idle_its_worker_is(registry: Registry):
    registry.add(FakeHost("p/0", [capability_card("idle", type="chat")], n_slots=9), 0)
    busy = FakeHost("p/1", [capability_card("busy", type="embed")])
    busy.permits.try_acquire()
    registry.add(busy, 0)

    assert match(registry, type="embed") == "busy"
    with pytest.raises(NotFound):
        match(registry, type="rerank")


def test_models_are_no_capabilities(registry: Registry):
    registry.add(FakeHost("p/0", [card()]), 0)

    with pytest.raises(NotFound):
        match(registry, type={"ne": "x"})


def test_matches_are_chosen_by_weight_then_priority_then_the_fewest_extra_attributes(registry: Registry):
    registry.add(FakeHost("p/0", [
        capability_card("extra", type="t", tier="small", gpu=True),
        capability_card("plain", type="t"),
        capability_card("first", priority=1, type="t", a=1, b=2, c=3),
    ]), 0)  # fmt: skip

    assert match(registry, prefer={"tier=small": 0.5}, type="t") == "extra"
    assert match(registry, type="t") == "first"
    assert match(registry, type="t", c={"exists": False}) == "plain"


def test_matches_that_are_alike_are_chosen_by_free_permits_and_load(registry: Registry):
    registry.add(busy := FakeHost("p/0", [capability_card("busy", type="t", a=1)]), 0)
    registry.add(half := FakeHost("p/1", [capability_card("half", type="t", b=1)], n_slots=2), 0)
    registry.add(FakeHost("p/2", [capability_card("idle", type="t", c=1)], n_slots=2), 0)
    busy.permits.try_acquire()
    half.permits.try_acquire()

    assert match(registry, type="t") == "idle"
    registry.remove(registry_host(registry, "p/2"), 0)
    assert match(registry, type="t") == "half"


def registry_host(registry: Registry, id: str) -> FakeHost:
    return next(group.host for entry in registry for group in entry.groups if group.host.id == id)


def test_a_match_that_can_be_called_comes_before_one_that_cannot(registry: Registry):
    host = FakeHost("p/0", [capability_card("gone", priority=1, type="t", a=1)])
    registry.add(host, 0)
    registry.add(FakeHost("p/1", [capability_card("here", type="t")]), 0)
    registry.remove(host, 0)

    assert match(registry, type="t") == "here"


def test_fuzzy_is_only_on_request_and_an_exact_match_wins(registry: Registry):
    registry.add(FakeHost("p/0", [capability_card("exact", type="Chat"), capability_card("folded", type="c-hat")]), 0)

    assert match(registry, is_fuzzy=True, type="Chat") == "exact"
    with pytest.raises(NotFound):
        match(registry, type="CHAT")


def test_two_fuzzy_candidates_are_a_conflict_that_names_both(registry: Registry):
    registry.add(FakeHost("p/0", [capability_card("left", type="Chat"), capability_card("right", type="c-hat")]), 0)

    with pytest.raises(Conflict, match=r"'left'.*'right'"):
        match(registry, is_fuzzy=True, type="CHAT")


def test_a_wrong_query_is_refused_also_where_nothing_is_known(registry: Registry):
    with pytest.raises(Refused, match="empty"):
        match(registry)
