"""Groups of requests: who is in them, and what an abort ends."""

import pytest

from corosrv.base.errors import TooManyMembers
from corosrv.web.groups import GroupTable


@pytest.fixture
def table() -> GroupTable:
    return GroupTable(max_members=4)


@pytest.fixture
def cancelled() -> list[str]:
    return []


def test_an_abort_ends_all_requests_of_the_group_and_no_other(table, cancelled):
    for group, request in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        table.join("me", group).bind(lambda request=request: cancelled.append(request))

    n = table.abort("me", "a", keeps_partial=False)

    assert (n, sorted(cancelled)) == (2, ["a1", "a2"])


def test_a_group_is_its_callers_own(table, cancelled):
    table.join("me", "a").bind(lambda: cancelled.append("mine"))

    assert table.abort("you", "a", keeps_partial=False) == 0
    assert cancelled == []


def test_a_request_that_begins_to_run_after_the_abort_is_ended_at_once(table, cancelled):
    member = table.join("me", "a")
    table.abort("me", "a", keeps_partial=True)

    member.bind(lambda: cancelled.append("a1"))

    assert cancelled == ["a1"]


def test_the_first_abort_decides_whether_partial_answers_are_kept(table):
    member = table.join("me", "a")

    table.abort("me", "a", keeps_partial=True)
    table.abort("me", "a", keeps_partial=False)

    assert member.keeps_partial


def test_a_group_is_forgotten_with_its_last_request(table):
    first, second = table.join("me", "a"), table.join("me", "a")
    first.leave()
    assert table.abort("me", "a", keeps_partial=False) == 1

    second.leave()
    second.leave()

    assert (table.n_groups, table.n_members) == (0, 0)
    assert table.abort("me", "a", keeps_partial=False) == 0


def test_requests_that_were_answered_are_not_cancelled(table, cancelled):
    member = table.join("me", "a")
    member.bind(lambda: cancelled.append("a1"))
    member.leave()

    member.abort(keeps_partial=False)

    assert cancelled == []


def test_no_more_requests_are_in_groups_than_may(table):
    members = [table.join("me", str(number)) for number in range(4)]
    with pytest.raises(TooManyMembers):
        table.join("me", "one too many")

    members[0].leave()

    assert table.join("me", "again").name == "again"
