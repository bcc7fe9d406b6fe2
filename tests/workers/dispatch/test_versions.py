"""Which version a call gets that names none."""

from __future__ import annotations

import pytest

from corosrv.workers.dispatch.registry import default_card, natural_order
from tests.workers.dispatch.hosts import card


@pytest.mark.parametrize(
    ("lower", "higher"), [("v9", "v10"), ("1.9", "1.10"), ("2", "10"), ("1", "a"), ("", "1"), ("1", "1" * 5000)]
)
def test_versions_sort_as_people_count(lower: str, higher: str):
    assert natural_order(lower) < natural_order(higher)


@pytest.mark.parametrize(
    ("versions", "default"),
    [(["v9", "v10"], "v10"), (["2", "", "3"], ""), (["1"], "1")],
)
def test_the_unversioned_or_else_the_highest_version_is_the_default(versions: list[str], default: str):
    chosen = default_card([card(version=version) for version in versions])

    assert chosen is not None
    assert chosen.version == default


def test_a_version_that_is_marked_is_the_default():
    chosen = default_card([card(version="1", is_default=True), card(version="2")])

    assert chosen is not None
    assert chosen.version == "1"


def test_without_cards_there_is_no_default():
    assert default_card([]) is None
