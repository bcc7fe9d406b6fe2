"""Schemas that come again are not converted again, and what is kept is bounded."""

import pytest

from corosrv.formats.structured.gbnf import Rules
from corosrv.formats.structured.schema.convert import RulesCache


def test_what_was_made_is_not_made_again_unless_something_differs() -> None:
    cache, made = RulesCache(), []

    def make() -> Rules:
        made.append(1)
        return Rules("v", {"v": "x"})

    first = cache.get({"a": 1, "b": 2}, "v", make)

    assert cache.get({"a": 1, "b": 2}, "v", make) is first
    assert len(made) == 1
    cache.get({"b": 2, "a": 1}, "v", make)
    cache.get({"a": 1, "b": 2}, "w", make)
    assert len(made) == 3


def make_again() -> Rules:
    raise LookupError


def test_what_was_not_asked_for_longest_is_forgotten() -> None:
    by_number, by_size = RulesCache(most_entries=2), RulesCache(most_bytes=250)
    for cache in (by_number, by_size):
        for schema in ("a", "b", "a", "c"):
            cache.get(schema, "", lambda: Rules("v", {"v": "x" * 100}))

        assert len(cache) == 2
        with pytest.raises(LookupError):
            cache.get("b", "", make_again)
        cache.get("a", "", make_again)
