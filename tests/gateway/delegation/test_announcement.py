"""What replicas tell each other of what they serve."""

from __future__ import annotations

import msgspec
import pytest

from corosrv.gateway.delegation.announcement import (
    MAX_NAME,
    MAX_OFFERS,
    V2,
    Announcement,
    BadAnnouncement,
    OfferedHandler,
    Offers,
    parse_announcement,
)
from corosrv.workers.dispatch.capability import parse_query

FULL = Announcement(
    "b",
    ["openai", "v2"],
    ["small"],
    [
        OfferedHandler("add"),
        OfferedHandler("norm", "2"),
        OfferedHandler("embed", capability={"type": "embed", "ctx": 8}),
    ],
)


def test_an_announcement_is_read_as_it_was_written():
    assert parse_announcement(msgspec.json.encode(FULL)) == FULL


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"[]", b"{}", b'{"replica": 5}', b'{"replica": "b", "models": "all"}', b"\xff", b"[" * 5000]
    + [b'{"replica": "%s"}' % name for name in (b"", b"a b", b"a,b", b"x" * 65)],
)
def test_what_is_no_announcement_is_refused(data: bytes):
    with pytest.raises(BadAnnouncement):
        parse_announcement(data)


def test_members_of_a_later_version_are_left_alone():
    assert parse_announcement(b'{"replica": "b", "colour": "red"}') == Announcement("b")


def test_no_more_offers_are_kept_than_the_limit():
    names = [f"m{number}" for number in range(MAX_OFFERS + 5)]
    announcement = Announcement("b", names, names, [OfferedHandler(name) for name in names])

    parsed = parse_announcement(msgspec.json.encode(announcement))

    assert [len(offers) for offers in (parsed.formats, parsed.models, parsed.handlers)] == [MAX_OFFERS] * 3


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1), "a\nb"])
def test_names_that_no_model_has_are_left_out(name: str):
    announcement = Announcement("b", [V2], [name, "small"], [OfferedHandler(name), OfferedHandler("add")])

    parsed = parse_announcement(msgspec.json.encode(announcement))

    assert (parsed.models, [handler.name for handler in parsed.handlers]) == (["small"], ["add"])


@pytest.mark.parametrize(
    ("name", "version", "is_there"),
    [("add", "", True), ("add", "1", True), ("add", "2", False), ("norm", "", True), ("norm", "2", True),
     ("norm", "1", False), ("embed", "", False), ("none", "", False)],
)  # fmt: skip
def test_a_version_is_found_as_a_dispatcher_finds_it(name: str, version: str, is_there: bool):
    assert Offers(FULL).has_handler(name, version) is is_there


@pytest.mark.parametrize(
    ("query", "is_there"), [({"type": "embed"}, True), ({"ctx": {"gte": 8}}, True), ({"type": "chat"}, False)]
)
def test_a_query_is_matched_with_the_capabilities(query: dict[str, object], is_there: bool):
    assert Offers(FULL).satisfies(parse_query(query), False) is is_there


def test_a_fuzzy_query_is_matched_fuzzily_and_no_other():
    offers, query = Offers(FULL), parse_query({"type": "EMBED"})

    assert offers.satisfies(query, True)
    assert not offers.satisfies(query, False)
