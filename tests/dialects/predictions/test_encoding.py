"""JSON text in pieces: the same text as in one go, and others have turns meanwhile."""

from __future__ import annotations

from typing import Any

import gevent
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.dialects.predictions.files import TURN, LargeJson, encode, encode_in_turns

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**50), 2**50)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def large(value: Any, size: int = 3) -> LargeJson:
    """The value as text in pieces of so many bytes."""
    text = msgspec.json.encode(value)
    return LargeJson(text[at : at + size] for at in range(0, len(text), size))


def joined(pieces: list[bytes]) -> Any:
    return msgspec.json.decode(b"".join(pieces))


@given(JSON, JSON)
def test_large_values_stand_where_they_were_put(one: Any, other: Any) -> None:
    assert joined(encode({"a": [large(one), other], "b": large(other), "c": one})) == {
        "a": [one, other],
        "b": other,
        "c": one,
    }


@given(st.dictionaries(st.text(), JSON, max_size=3), st.lists(JSON, max_size=20), st.integers(TURN, 1 << 40))
def test_what_is_encoded_in_turns_is_the_same(members: dict[str, Any], items: list[Any], n_bytes: int) -> None:
    view = {**members, "items": items, "inner": members}

    assert joined(encode_in_turns(view, n_bytes)) == view
    assert joined(encode_in_turns({"items": list(map(large, items))}, n_bytes)) == {"items": items}


@pytest.mark.parametrize(
    "view",
    [
        {"logs": "ä\n\x00\U0001f600" * TURN},
        {"output": ["x" * (TURN // 4)] * 40},
        {"output": list(range(8 * TURN))},
        {"input": {"text": "x" * 8 * TURN}},
    ],
    ids=["text", "chunks", "numbers", "input"],
)
def test_others_have_turns_while_much_is_encoded(view: dict[str, Any]) -> None:
    turns: list[int] = []

    def count() -> None:
        while True:
            turns.append(len(turns))
            gevent.sleep(0)

    counting = gevent.spawn(count)
    try:
        pieces = encode_in_turns(view, len(msgspec.json.encode(view)))
    finally:
        counting.kill()

    assert joined(pieces) == view
    assert len(turns) >= 4
    assert max(map(len, pieces)) < 8 * TURN


def test_a_list_that_grows_meanwhile_is_encoded_as_it_was() -> None:
    items = ["x" * TURN] * 4
    growing = gevent.spawn(items.append, "late")

    pieces = encode_in_turns({"output": items}, 4 * TURN)

    growing.join()
    assert len(joined(pieces)["output"]) == 4
