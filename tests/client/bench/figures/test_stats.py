"""Samples to figures."""

from __future__ import annotations

import random
import statistics

import pytest

from corosrv.client.bench.figures import CURVE, Quantiles, curve, median, over_rounds, quantile, quantiles


def test_known_samples_have_known_percentiles():
    assert quantiles(range(100, -1, -1)) == Quantiles(50.0, 90.0, 95.0, 99.0, 100, 101)


def test_one_sample_is_every_percentile():
    assert quantiles([2.5]) == Quantiles(2.5, 2.5, 2.5, 2.5, 2.5, 1)


def test_without_samples_there_is_none():
    assert quantiles([]) is None
    assert curve([]) == []
    assert median([None]) is None
    assert over_rounds([None, None]) is None


def test_percentiles_are_those_of_the_standard_library():
    chance = random.Random(1)
    ordered = sorted(chance.random() for _ in range(57))

    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    assert [quantile(ordered, share / 100) for share in range(1, 100)] == pytest.approx(cuts)


def test_a_curve_rises_from_the_least_to_the_most():
    values = curve(range(1001))

    assert (values[0], values[-1], len(values)) == (0, 1000, len(CURVE))
    assert values[CURVE.index(0.999)] == pytest.approx(999)


def test_rounds_give_their_median_and_their_worst():
    rounds = [Quantiles(p, p, p, p, 10 * p, 4) for p in (1.0, 2.0, 9.0)]

    assert over_rounds([*rounds, None]) == Quantiles(2.0, 2.0, 2.0, 2.0, 90.0, 12)


def test_a_median_leaves_out_what_is_missing():
    assert median([None, 1.0, 3.0]) == 2.0
