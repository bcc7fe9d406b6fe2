from collections import Counter
from collections.abc import Mapping

import pytest

from corosrv.fleet.upstreams.policies import score

KEYS = [f"session {number}" for number in range(5000)]


def owners(weights: Mapping[str, float]) -> dict[str, str]:
    return {key: max(weights, key=lambda id: score(key, id, weights[id])) for key in KEYS}


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_an_upstream_that_leaves_moves_its_own_keys_and_no_others(n: int):
    before = owners({str(number): 1.0 for number in range(n + 1)})

    after = owners({str(number): 1.0 for number in range(n)})

    assert all(after[key] == before[key] for key in KEYS if before[key] != str(n))


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_an_upstream_that_comes_takes_its_share_and_moves_nothing_else(n: int):
    before = owners({str(number): 1.0 for number in range(n)})

    after = owners({str(number): 1.0 for number in range(n + 1)})

    moved = [key for key in KEYS if after[key] != before[key]]
    assert {after[key] for key in moved} == {str(n)}
    assert len(moved) == pytest.approx(len(KEYS) / (n + 1), rel=0.15)


def test_a_weight_that_grows_takes_keys_and_gives_none_away():
    before = owners({"a": 1.0, "b": 1.0, "c": 1.0})

    after = owners({"a": 1.0, "b": 2.0, "c": 1.0})

    assert {after[key] for key in KEYS if after[key] != before[key]} == {"b"}


def test_each_upstream_has_its_weights_share_of_the_keys():
    counts = Counter(owners({"a": 1.0, "b": 2.0, "c": 5.0}).values())

    for id, weight in {"a": 1, "b": 2, "c": 5}.items():
        assert counts[id] == pytest.approx(len(KEYS) * weight / 8, rel=0.1)


def test_a_rank_is_the_same_in_every_process():
    assert score("session", "http://a:8080", 2.0) == pytest.approx(0.996898, abs=1e-6)  # by b2sum -l 64


def test_a_name_and_a_key_are_told_apart():
    assert score("bc", "a") != score("c", "ab")


@pytest.mark.parametrize("key", ["", "\udcff", "日本", "\0", "x" * 10_000])
def test_any_text_has_a_score(key: str):
    assert 0 < score(key, "a") < float("inf")
