import pytest

from corosrv.fleet.upstreams.policies import POLICY_NAMES
from tests.load.prefix_routing import BLOCK, Load, PromptCache, Result, Simulation, row

LOAD = Load(users=24, turns=5, concurrency=4)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {name: Simulation(name, LOAD).run() for name in POLICY_NAMES}


def test_the_oracle_knows_beginnings_only_and_forgets_what_was_used_longest_ago():
    cache = PromptCache(8 * BLOCK)
    first, second, third = (letter * 4 * BLOCK for letter in (b"a", b"b", b"c"))
    cache.add(first)
    cache.add(second)
    cache.add(first)

    cache.add(third)

    assert cache.n_known(first + b"x") == 4 * BLOCK
    assert cache.n_known(second) == 0
    assert cache.n_known(b"x" + third) == 0


def test_a_text_longer_than_the_cache_is_known_as_far_as_it_fits():
    cache = PromptCache(3 * BLOCK)

    cache.add(bytes(10 * BLOCK))

    assert cache.n_known(bytes(10 * BLOCK)) == 3 * BLOCK


def test_upstreams_know_far_more_of_the_prompts_that_sticky_and_prefix_aware_policies_give_them(results):
    memoryless = max(results[name].share for name in ("least_loaded", "power_of_two", "round_robin"))

    assert results["prefix"].share > memoryless + 0.2
    assert results["sticky"].share > memoryless + 0.2


def test_a_known_prompt_is_answered_sooner(results):
    assert sum(results["prefix"].first_bytes) < 0.6 * sum(results["round_robin"].first_bytes)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_no_policy_gives_an_upstream_more_than_three_fifths_above_its_due(results, name: str):
    assert sum(results[name].n_calls) == LOAD.users * LOAD.turns
    assert results[name].spread < 1.6


def test_a_line_of_the_table_has_the_share_and_the_counts(results):
    line = row("prefix", results["prefix"])

    assert f"{results['prefix'].share:.1%}" in line
    assert all(str(n) in line for n in results["prefix"].n_calls)
