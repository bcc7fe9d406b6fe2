"""Stored responses: found by their owner, and only as many as there is room for."""

from dataclasses import replace

import msgspec
import pytest

from corosrv.base.errors import NotFound, Refused
from corosrv.contracts.jobs import Image
from corosrv.dialects.openai.responses.store import (
    MAX_CONVERSATION_ITEMS,
    Item,
    ResponseStore,
    Shelf,
    Stored,
)
from corosrv.dialects.openai.responses.stored_images import StoredImage, take_images
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


def image(shade: int, file: bytes = b"") -> Image:
    """An image of 300 bytes of pixels, of which no two shades are the same."""
    return replace(Image.of_pixels(10, 10, bytes([shade]) * 300), file=file)


def with_images(id: str, *images: Image) -> Stored:
    return Stored(empty_response(id), ({"role": "user", "content": ("Look:", *images)},))


def contents(stored: Stored) -> list[bytes | Image]:
    return [part.content for part in stored.turns[0]["content"] if isinstance(part, StoredImage)]


def test_an_image_is_stored_as_its_file_or_else_as_its_pixels():
    shelf = ResponseStore(10_000).shelf("me")

    shelf.put(with_images("a", image(1, b"file"), image(2), image(3, bytes(301))))

    assert contents(shelf.get("a")) == [b"file", image(2), image(3)]
    assert [content.file for content in contents(shelf.get("a"))[1:]] == [b"", b""]
    assert shelf.get("a").turns[0]["content"][0] == "Look:"


def test_an_image_of_many_responses_takes_its_bytes_once_until_the_last_of_them_is_gone():
    base = len(msgspec.json.encode(take_images(with_images("a").turns)[0]))
    shelf = ResponseStore(20 * (SIZE + base + 100) + 300).shelf("me")

    for id in "abcdefghij":
        shelf.put(with_images(id, image(1)))
    for id in "abcdefghi":
        shelf.drop(id)

    assert contents(shelf.get("j")) == [image(1)]
    assert shelf.n_image_bytes == 300
    shelf.drop("j")
    assert shelf.n_image_bytes == 0


def test_an_image_that_makes_a_conversation_too_large_is_not_stored_with_it():
    shelf = ResponseStore(SIZE + 200).shelf("me")

    shelf.put(with_images("a", image(1)))

    with pytest.raises(NotFound):
        shelf.get("a")
    assert shelf.n_image_bytes == 0


def test_images_make_room_with_the_response_that_has_them():
    shelf = ResponseStore(2 * (SIZE + 500)).shelf("me")
    shelf.put(with_images("a", image(1)))
    shelf.put(with_images("b", image(2)))

    shelf.put(with_images("c", image(3)))

    assert contents(shelf.get("c")) == [image(3)]
    assert shelf.n_image_bytes == 600
    with pytest.raises(NotFound):
        shelf.get("a")


def test_a_response_that_is_put_again_holds_its_images_once():
    shelf = ResponseStore(10_000).shelf("me")
    for _ in range(2):
        shelf.put(with_images("a", image(1), image(1)))

    shelf.drop("a")

    assert shelf.n_image_bytes == 0


def message(id: str, words: str = "") -> Item:
    return {"type": "message", "id": id, "role": "user", "content": [{"type": "input_text", "text": words}]}


def ids(shelf: Shelf, conversation: str) -> list[str]:
    return list(shelf.conversation(conversation).items)


def test_a_conversation_keeps_its_items_in_their_order_and_its_metadata():
    shelf = ResponseStore(100_000).shelf("me")
    id = shelf.begin({"a": "b"}, [message("msg_1")]).id

    shelf.extend(id, [message("msg_3"), message("msg_2")])
    shelf.take_out(id, "msg_1")

    assert ids(shelf, id) == ["msg_3", "msg_2"]
    assert shelf.conversation(id).metadata == {"a": "b"}
    assert shelf.label(id, {}).metadata == {}


def test_an_item_whose_id_is_taken_gets_another():
    shelf = ResponseStore(100_000).shelf("me")
    id = shelf.begin({}, [message("msg_1", "first")]).id

    (added,) = shelf.extend(id, [message("msg_1", "second")])

    assert added["id"] != "msg_1"
    assert ids(shelf, id) == ["msg_1", added["id"]]


def test_a_conversation_is_its_owners_and_no_response():
    store = ResponseStore(100_000)
    id = store.shelf("me").begin({}, []).id

    for shelf, find in ((store.shelf("other"), Shelf.conversation), (store.shelf("me"), Shelf.get)):
        with pytest.raises(NotFound):
            find(shelf, id)
    with pytest.raises(NotFound):
        store.shelf("other").end(id)
    assert ids(store.shelf("me"), id) == []


def test_conversations_and_responses_share_one_room_and_leave_it_whole():
    shelf = ResponseStore(6000).shelf("me")
    old = shelf.begin({}, [message("msg_1", "x" * 900)]).id
    for i in range(20):
        id = shelf.begin({"i": str(i)}, [message("msg_1", "x" * 500)]).id
        shelf.take_out(id, "msg_1")
        shelf.label(id, {})
        shelf.end(id)
    assert ids(shelf, old) == ["msg_1"], "what was deleted has left its room"

    for id in "abcdefghijklmnopqrstuvwxyz":
        shelf.put(stored(id, "x" * 100))

    with pytest.raises(NotFound):
        shelf.conversation(old)
    assert shelf.get("z")


@pytest.mark.parametrize(
    ("room", "items", "words"),
    [
        (0, [], "RESPONSE_STORE_BYTES"),
        (10_000, [message("msg_1", "x" * 5000)], "bytes"),
        (10**9, [message(f"msg_{i}") for i in range(MAX_CONVERSATION_ITEMS + 1)], "items"),
        (10**9, [message("msg_1", ",") | {"a": [1] * 2**19}], "values"),
    ],
)
def test_a_conversation_that_would_be_too_large_is_refused_and_nothing_of_it_stays(room, items, words):
    shelf = ResponseStore(room).shelf("me")

    with pytest.raises(Refused, match=words) as refused:
        shelf.begin({}, items)

    assert (refused.value.param, refused.value.code) == ("items", "conversation_too_large")


def test_an_answer_that_is_larger_than_all_the_room_leaves_its_conversation_as_it_was(caplog):
    shelf = ResponseStore(10_000).shelf("me")
    id = shelf.begin({}, [message("msg_1")]).id

    shelf.add_turn(id, [message("msg_2", "x" * 6000)])  # more than a request may add
    shelf.add_turn(id, [message("msg_3"), message("msg_4", "x" * 10_000)])

    assert ids(shelf, id) == ["msg_1", "msg_2"]
    assert "too large" in caplog.text
