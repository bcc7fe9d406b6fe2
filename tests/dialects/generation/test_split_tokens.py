"""Tokens one by one."""

import pytest

from corosrv.contracts.jobs import Chunk, Finish, TokenInfo
from corosrv.dialects.generation.call import split_tokens


def tokens(*pieces: bytes) -> tuple[TokenInfo, ...]:
    return tuple(TokenInfo(number, piece, -1.0) for number, piece in enumerate(pieces))


def apart(text: str, n_tokens: int, *pieces: bytes, finish: Finish | None = None) -> list[tuple[str, int, int]]:
    """Text, tokens told and tokens counted of each."""
    merged = Chunk(0, text, n_tokens, finish, tokens=tokens(*pieces))
    return [(chunk.text, len(chunk.tokens), chunk.n_tokens) for chunk in split_tokens([merged])]


@pytest.mark.parametrize(
    ("text", "n_tokens", "pieces", "expected"),
    [
        ("", 1, (), [("", 0, 1)]),
        ("a", 1, (b"a",), [("a", 1, 1)]),
        ("ab", 2, (b"a", b"b"), [("a", 1, 1), ("b", 1, 1)]),
        ("aé!", 4, (b"a", b"\xc3", b"\xa9", b"!"), [("a", 1, 1), ("é", 2, 2), ("!", 1, 1)]),
        ("ab", 3, (b"a", b"b", b""), [("a", 1, 1), ("b", 1, 1), ("", 1, 1)]),
        ("ab", 1, (b"a", b"b"), [("a", 1, 1), ("b", 1, 0)]),
        ("ab", 4, (b"a", b"b"), [("a", 1, 1), ("b", 1, 3)]),
        ("\ufffdb", 2, (b"\xff", b"b"), [("\ufffdb", 2, 2)]),
        ("ab", 2, (b"a", b"bcd"), [("ab", 2, 2)]),
    ],
)
def test_each_token_comes_with_its_own_text(text, n_tokens, pieces, expected):
    assert apart(text, n_tokens, *pieces) == expected


def test_the_last_alone_says_how_it_ended():
    merged = Chunk(0, "ab", 2, Finish.STOP, tokens=tokens(b"a", b"b"), stopping_word="x")

    first, last = split_tokens([merged])

    assert (first.finish, last.finish, last.stopping_word) == (None, Finish.STOP, "x")
