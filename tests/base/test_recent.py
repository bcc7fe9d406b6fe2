"""Values that are kept for as long as there is room."""

from corosrv.base.recent import RecentValues


def by_bytes(most_bytes: int) -> RecentValues[str, bytes]:
    return RecentValues(most_bytes=most_bytes, size_of=len)


def test_a_value_is_found_again():
    recent, value = by_bytes(100), b"12"

    recent.put("a", value)

    assert recent.get("a") is value
    assert recent.get("b") is None
    assert (recent.n_bytes, recent.n_hits, len(recent)) == (2, 1, 1)


def test_those_used_longest_ago_make_room():
    recent = by_bytes(4)
    recent.put("a", b"12")
    recent.put("b", b"12")
    recent.get("a")

    recent.put("c", b"12")

    assert [recent.get(key) for key in "abc"] == [b"12", None, b"12"]
    assert recent.n_bytes == 4


def test_no_more_are_kept_than_may_be():
    recent: RecentValues[str, int] = RecentValues(2)
    for key, value in [("a", 1), ("b", 2), ("a", 3), ("c", 4)]:
        recent.put(key, value)

    assert [recent.get(key) for key in "abc"] == [3, None, 4]
    assert len(recent) == 2


def test_a_value_as_large_as_all_the_room_is_kept():
    recent = by_bytes(4)

    recent.put("a", b"1234")

    assert recent.get("a") is not None


def test_a_value_larger_than_all_the_room_pushes_no_other_out():
    recent = by_bytes(4)
    recent.put("a", b"12")

    recent.put("b", b"12345")

    assert (recent.get("a"), recent.get("b")) == (b"12", None)


def test_a_value_that_comes_again_is_counted_once():
    recent = by_bytes(100)

    for _ in range(2):
        recent.put("a", b"12")

    assert (recent.n_bytes, len(recent)) == (2, 1)
    recent.clear()
    assert (recent.get("a"), recent.n_bytes) == (None, 0)
