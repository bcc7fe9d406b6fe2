"""Stored responses: found by their owner, and only as many as there is room for."""

import msgspec
import pytest

from corosrv.errors import NotFound
from corosrv.openai.responses.store import ResponseStore, Stored
from tests.support.answers import empty_response


def stored(id: str, words: str = "") -> Stored:
    return Stored(empty_response(id), ({"role": "assistant", "content": words},))


SIZE = len(msgspec.json.encode(stored("a")))


def test_what_was_put_is_got():
    shelf = ResponseStore(10_000).shelf("me")

    shelf.put(stored("a", "hello"))

    assert shelf.get("a") == stored("a", "hello")


def test_another_caller_does_not_find_it():
    store = ResponseStore(10_000)
    store.shelf("me").put(stored("a"))
    other = store.shelf("other")

    with pytest.raises(NotFound):
        other.get("a")
    with pytest.raises(NotFound):
        other.drop("a")
    assert store.shelf("me").get("a")


def test_nobodys_responses_push_out_anothers():
    store = ResponseStore(2 * SIZE, n_callers=2)
    store.shelf("me").put(stored("a"))

    for id in "bcd":
        store.shelf("other").put(stored(id))

    assert store.shelf("me").get("a")
    assert store.shelf("other").get("d")
    with pytest.raises(NotFound):
        store.shelf("other").get("c")


def test_what_is_not_there_is_said_where_it_was_asked_for():
    with pytest.raises(NotFound) as missing:
        ResponseStore(10_000).shelf("me").get("a", "previous_response_id")

    assert (missing.value.param, missing.value.code) == ("previous_response_id", "response_not_found")


def test_the_one_not_asked_for_longest_makes_room():
    shelf = ResponseStore(2 * SIZE).shelf("me")
    shelf.put(stored("a"))
    shelf.put(stored("b"))

    shelf.get("a")
    shelf.put(stored("c"))

    assert shelf.get("a")
    assert shelf.get("c")
    with pytest.raises(NotFound):
        shelf.get("b")


def test_what_is_dropped_is_gone_and_its_room_free():
    shelf = ResponseStore(2 * SIZE).shelf("me")
    for _ in range(5):
        shelf.put(stored("a"))
        shelf.drop("a")
    shelf.put(stored("b"))
    shelf.put(stored("c"))

    assert shelf.get("b")
    assert shelf.get("c")
    for again in (shelf.get, shelf.drop):
        with pytest.raises(NotFound):
            again("a")


@pytest.mark.parametrize("room", [0, SIZE - 1])
def test_what_does_not_fit_at_all_is_not_kept(room):
    shelf = ResponseStore(room).shelf("me")

    shelf.put(stored("a"))

    with pytest.raises(NotFound):
        shelf.get("a")


def test_one_that_is_too_large_takes_nobody_elses_room():
    shelf = ResponseStore(2 * SIZE).shelf("me")
    shelf.put(stored("a"))

    shelf.put(stored("b", "x" * 3 * SIZE))

    assert shelf.get("a")
