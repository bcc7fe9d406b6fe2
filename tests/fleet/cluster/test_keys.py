"""Names of keys in Redis."""

from __future__ import annotations

import pytest

from corosrv.fleet.cluster.namespace import KeyNames

NAMES = KeyNames("prod")


def test_a_name_has_the_namespace_in_braces():
    assert NAMES.name("queue", "model", "high") == "corosrv:{prod}:queue:model:high"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a:b",), ("a", "b")),
        (("a", ""), ("a",)),
        (("a%3Ab",), ("a:b",)),
        (("x" * 300,), ("x" * 299 + "y",)),
        (("é",), ("e",)),
        (("\ud800",), ("\ud801",)),
    ],
)
def test_different_parts_have_different_names(first: tuple[str, ...], second: tuple[str, ...]):
    assert NAMES.name("queue", *first) != NAMES.name("queue", *second)


def test_a_long_part_makes_no_long_name():
    assert len(NAMES.name("queue", "é" * 10_000)) < 300


def test_a_hashed_part_is_never_a_name_that_somebody_chose():
    hashed = NAMES.name("queue", "x" * 300).rpartition(":")[2]

    assert NAMES.name("queue", hashed) != NAMES.name("queue", "x" * 300)


def test_namespaces_share_no_name():
    assert KeyNames("a").name("queue", "m") != KeyNames("b").name("queue", "m")
