"""Counts of tokens in answers."""

from __future__ import annotations

import json

import pytest

from corosrv.fleet.upstreams.forwarded_call import TAIL, UsageReader


def count(*pieces: bytes) -> int | None:
    reader = UsageReader()
    for piece in pieces:
        reader.feed(piece)
    return reader.n_tokens()


@pytest.mark.parametrize(
    "usage",
    [
        b'"usage":{"completion_tokens":17,"prompt_tokens":3,"total_tokens":20}}',
        b'"usage": {"input_tokens": 3, "output_tokens": 17}}\n\nevent: message_stop\ndata: {}\n\n',
        b'"timings":{"prompt_n":3,"predicted_n":17,"predicted_ms":1.5}}\n\ndata: [DONE]\n\n',
    ],
)
@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_the_count_is_read_whatever_the_dialect_and_the_pieces(usage: bytes, size: int):
    answer = b'{"text":"' + b"x" * 2 * TAIL + b'",' + usage

    assert count(*(answer[start : start + size] for start in range(0, len(answer), size))) == 17


def test_the_last_of_several_counts_holds():
    assert count(b'data: {"usage":{"output_tokens":1}}\n\n', b'data: {"usage":{"output_tokens":9}}\n\n') == 9


def test_what_a_text_says_is_no_count():
    text = json.dumps({"content": '"completion_tokens": 99'}).encode()

    assert count(text) is None
    assert count(b"") is None
