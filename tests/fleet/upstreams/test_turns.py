from collections import Counter

import pytest

from corosrv.fleet.upstreams.policies import WeightedTurns


def take(turns: WeightedTurns, weights: dict[str, float], n: int) -> list[str]:
    taken = []
    for _ in range(n):
        taken.append(min(weights, key=turns.place))
        turns.take(taken[-1], weights[taken[-1]])
    return taken


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (5, 3, 2), (0.5, 0.25), (1000, 1)])
def test_turns_are_taken_in_proportion_to_weights(weights):
    by_id = {str(number): weight for number, weight in enumerate(weights)}

    counts = Counter(take(WeightedTurns(), by_id, 10_000))

    for id, weight in by_id.items():
        assert counts[id] == pytest.approx(10_000 * weight / sum(weights), abs=2)


def test_turns_of_a_heavy_upstream_are_spread_among_those_of_a_light_one():
    assert "a" * 4 not in "".join(take(WeightedTurns(), {"a": 2, "b": 1}, 300))


def test_an_upstream_that_was_away_does_not_make_up_for_its_turns():
    turns = WeightedTurns()
    take(turns, {"a": 1, "b": 1}, 10)
    take(turns, {"a": 1}, 1000)

    counts = Counter(take(turns, {"a": 1, "b": 1}, 10))

    assert counts["b"] <= 6


def test_a_new_upstream_begins_where_the_others_are():
    turns = WeightedTurns()
    take(turns, {"a": 1, "b": 1}, 1000)

    counts = Counter(take(turns, {"a": 1, "b": 1, "c": 1}, 30))

    assert 9 <= counts["c"] <= 11


def test_an_upstream_that_is_forgotten_has_no_place_of_its_own():
    turns = WeightedTurns()
    turns.take("a", 0.001)

    turns.forget("a")

    assert turns.place("a") == turns.place("b")
