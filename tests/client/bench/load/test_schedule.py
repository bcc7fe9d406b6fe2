"""When requests are due, who sends them, and who goes first."""

from __future__ import annotations

from itertools import pairwise

import pytest

from corosrv.client.bench.plan import in_turn, poisson, share


def test_arrivals_come_at_the_rate_and_know_nothing_of_each_other():
    times = poisson(rate=5.0, n=20_000, seed="1")

    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.2, rel=0.03)
    assert spread == pytest.approx(mean, rel=0.05)  # as only the exponential distribution has it
    assert times == sorted(times)


def test_a_seed_gives_the_same_arrivals_again():
    assert poisson(2.0, 50, "a") == poisson(2.0, 50, "a")
    assert poisson(2.0, 50, "a") != poisson(2.0, 50, "b")


def test_who_goes_first_goes_last_in_the_next_round():
    assert [in_turn("ab", number) for number in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]


@pytest.mark.parametrize(("n", "parts"), [(10, 1), (10, 3), (2, 5), (0, 2)])
def test_every_number_belongs_to_one_part(n, parts):
    numbers = [number for part in range(parts) for number in share(n, part, parts)]

    assert sorted(numbers) == list(range(n))
