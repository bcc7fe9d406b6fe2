"""Which handler a call gets by its name, its version or a fuzzy query, and the words for one that cannot be called."""

from __future__ import annotations

import pytest

from corosrv.base.errors import NotFound, Unavailable
from corosrv.contracts.jobs.infer import CapabilityTarget, HandlerCard, ModelTarget
from corosrv.workers.dispatch.registry import Registry, check_ready, look_up
from tests.workers.dispatch.hosts import FakeHost, capability_card, card


@pytest.fixture
def registry() -> Registry:
    return Registry()


def match(registry: Registry, **query: object) -> str:
    return look_up(registry, CapabilityTarget(query, {}, True)).card.name


def test_the_version_1_is_not_the_unversioned_one_where_both_are(registry: Registry):
    registry.add(FakeHost("p/0", [card("add"), card("add", "1")]), 0)

    assert look_up(registry, ModelTarget("add", "1")).card.version == "1"
    assert look_up(registry, ModelTarget("add")).card.version == ""


def test_a_model_without_versions_says_so(registry: Registry):
    registry.add(FakeHost("p/0", [card("add")]), 0)

    with pytest.raises(NotFound, match="no version '2'; it has no versions"):
        look_up(registry, ModelTarget("add", "2"))


def test_the_default_of_versions_whose_workers_have_left_is_unavailable_and_not_unknown(registry: Registry):
    host = FakeHost("p/0", [card("add", "1"), card("add", "2")])
    registry.add(host, 0)
    registry.remove(host, 0)

    entry = look_up(registry, ModelTarget("add"))

    assert entry.card.version == "2"
    with pytest.raises(Unavailable):
        check_ready(entry, 0.0)


@pytest.mark.parametrize(
    ("offered", "target", "words"),
    [
        (card("add"), ModelTarget("add"), "the model 'add' cannot be called now: no worker is ready"),
        (card("add", "2"), ModelTarget("add", "2"), "the model 'add' version '2' cannot"),
        (capability_card("embed", type="t"), CapabilityTarget({"type": "t"}, {}), "the capability 'embed' cannot"),
    ],
)
def test_what_cannot_be_called_now_is_named(registry: Registry, offered: HandlerCard, target, words: str):
    host = FakeHost("p/0", [offered])
    registry.add(host, 0)
    registry.remove(host, 0)

    with pytest.raises(Unavailable, match=words) as refusal:
        check_ready(look_up(registry, target), 0.0)

    assert refusal.value.retry_after == 2


def test_one_fuzzy_match_is_taken_and_what_does_not_match_is_not(registry: Registry):
    registry.add(FakeHost("p/0", [capability_card("chat", type="Chat 2"), capability_card("idle", type="embed")]), 0)

    assert match(registry, type="chat-2") == "chat"
    with pytest.raises(NotFound):
        match(registry, type="rerank")


def test_capabilities_are_no_models(registry: Registry):
    registry.add(FakeHost("p/0", [capability_card("embed", type="t")]), 0)

    with pytest.raises(NotFound):
        look_up(registry, ModelTarget("embed"))
