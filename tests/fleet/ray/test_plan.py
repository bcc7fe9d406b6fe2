"""What a controller does next, and how many engines it wants."""

from dataclasses import replace

import pytest

from corosrv.fleet.ray.cluster_file import Kind, convert, groups_of
from corosrv.fleet.ray.plan import (
    ROOM_PATIENCE,
    Action,
    GroupScaler,
    GroupTarget,
    MemberSeen,
    MemberState,
    Step,
    load_of,
    plan,
)

READY, STARTING, UNPLACED = MemberState.READY, MemberState.STARTING, MemberState.UNPLACED
FAILED, DRAINING, GONE = MemberState.FAILED, MemberState.DRAINING, MemberState.GONE
KEY = "engine:chat"
GROUP = groups_of(convert({"engines": [{"name": "chat", "model": "synthetic:", "replicas": [1, 4]}]}, ""))[1]


def member(name: str, state: MemberState = READY, version: str = "new", since: float = 0.0) -> MemberSeen:
    return MemberSeen(name, Kind.ENGINE, "chat", version, state, since)


def words(size: int, *members: MemberSeen, now: float = 0.0) -> list[tuple[str, str]]:
    return [(one.step.value, one.subject) for one in plan([GroupTarget(KEY, "new", size)], members, now)]


START = ("start", KEY)


@pytest.mark.parametrize(
    ("size", "members", "expected"),
    [
        (2, [], [START, START]),
        (2, [member("a"), member("b", STARTING)], []),
        (2, [member("a"), member("b", FAILED)], []),  # its actor tries again
        (2, [member("a"), member("b", DRAINING)], [START]),
        (1, [member("a"), member("b", GONE)], [("remove", "b")]),
        # Fewer: those that serve least, and of these the youngest.
        (1, [member("a", since=1), member("b", since=2)], [("drain", "b")]),
        (1, [member("a", STARTING), member("b", since=2)], [("drain", "a")]),
        (1, [member("a"), member("b", UNPLACED)], [("remove", "b")]),
        # Another version: one by one.
        (2, [member("a", version="old"), member("b", version="old")], [START]),
        (2, [member("a", version="old"), member("b", version="old"), member("c", STARTING)], []),
        (2, [member("a", version="old"), member("b", version="old"), member("c")], [("drain", "a")]),
        (2, [member("a", DRAINING, "old"), member("b", version="old"), member("c")], []),
        (2, [member("b", version="old"), member("c")], [START]),
        # One that fails takes no old one along, and an old one that does not serve makes way.
        (2, [member("a", version="old"), member("b", version="old"), member("c", FAILED)], []),
        (2, [member("a", FAILED, "old"), member("b", version="old")], [("drain", "a")]),
        (3, [member("a", version="old")], [START, START]),
    ],
)
def test_a_plan_brings_a_group_nearer_to_its_target(size, members, expected):
    assert words(size, *members) == expected


def test_an_old_process_makes_room_where_there_is_none_for_both():
    members = [member("a", version="old"), member("b", UNPLACED, since=10)]

    assert words(1, *members, now=10 + ROOM_PATIENCE - 1) == []
    assert words(1, *members, now=10 + ROOM_PATIENCE) == [("drain", "a")]


def test_fronts_end_before_the_engines_that_their_calls_need():
    front = MemberSeen("f", Kind.FRONT, "fronts", "new", READY)

    assert plan([], [member("a"), front], 0.0) == [Action(Step.DRAIN, "f")]
    assert plan([], [member("a"), replace(front, state=DRAINING)], 0.0) == []
    assert plan([], [member("a")], 0.0) == [Action(Step.DRAIN, "a")]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("n_old", [1, 2, 4])
def test_a_rolling_update_never_has_fewer_ready_than_before_or_wanted(size, n_old):
    members = {f"old{n}": member(f"old{n}", version="old") for n in range(n_old)}
    n_made = 0
    for _ in range(40):
        for action in plan([GroupTarget(KEY, "new", size)], list(members.values()), 0.0):
            if action.step is Step.START:
                n_made += 1
                members[f"new{n_made}"] = member(f"new{n_made}", STARTING)
            elif action.step is Step.DRAIN:
                members[action.subject] = replace(members[action.subject], state=DRAINING)
            else:
                del members[action.subject]
        n_ready = sum(one.state is READY for one in members.values())
        assert n_ready >= min(size, n_old)
        after = {STARTING: READY, DRAINING: GONE}
        members = {name: replace(one, state=after.get(one.state, one.state)) for name, one in members.items()}

    assert [one.version for one in members.values()] == ["new"] * size


def row(depth: int, oldest: float, *pools: str) -> dict:
    return {"pools": pools, "depth": depth, "oldest_ms": oldest * 1000, "service_ewma_ms": 4000.0}


def engine(name: str, in_flight: int) -> dict:
    return {"id": name, "url": f"http://{name}", "concurrency": 2, "in_flight": in_flight}


def test_the_load_of_a_group_is_what_waits_for_its_engines_and_what_they_run():
    load = load_of(GROUP, [row(3, 9.0, "a", "b"), row(5, 20.0, "other")], [engine("a", 2), engine("b", 1)])

    assert (load.depth, load.oldest, load.service, load.slots, load.in_use) == (3, 9.0, 4.0, 2, 3)


def test_calls_that_wait_too_long_ask_for_engines_within_the_bounds():
    scaler = GroupScaler(1)
    members = [member("a")]
    load = load_of(GROUP, [row(200, 40.0, "a")], [engine("a", 2)])
    sizes = [scaler.decide(GROUP, (1, 3), members, load, float(now)) for now in range(60, 64)]

    assert sizes[0] > 1
    assert max(sizes) == 3
    assert "would wait" in scaler.reason


def test_an_engine_goes_when_nothing_was_asked_of_it_for_a_minute():
    scaler = GroupScaler(1)
    members = [member("a"), member("b")]
    idle = load_of(GROUP, [], [engine("a", 0), engine("b", 0)])
    scaler.decide(GROUP, (2, 4), members, idle, 0.0)

    sizes = [scaler.decide(GROUP, (1, 4), members, idle, float(now)) for now in range(1, 200)]

    assert sizes[0] == 2
    assert sizes[-1] == 1
