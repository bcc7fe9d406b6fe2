"""JSON of long answers."""

import json
from typing import Any

import gevent
import pytest

from corosrv.web.http import reply


@pytest.mark.parametrize(
    "value",
    [
        {}, [], None, "é\n", 1.5, {"a": 1, "b\n": [1, "x"]}, list(range(1000)),
        {"data": [{"id": i} for i in range(130)]}, [[]] * 65, {"a": {"b": list(range(64))}, "c": [None] * 128},
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_value_is_encoded_as_it_would_be_in_one_piece(value: Any):
    assert json.loads(reply.encode(value)) == value


def test_others_run_while_a_long_answer_is_encoded():
    answer = {"data": [{"index": index, "embedding": [0.123456789] * 1000} for index in range(2000)]}
    encoding = gevent.spawn(reply.encode, answer)
    n_turns = 0
    while not encoding.ready():
        gevent.sleep(0.0001)
        n_turns += 1

    assert n_turns > 5
    assert encoding.get().count(b"index") == 2000
