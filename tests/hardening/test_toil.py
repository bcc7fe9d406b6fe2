"""Small requests that ask for much work: the work is refused, or done in turns between which everybody is served."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hardening.watch import HealthWatch
from tests.serve.server import Server
from tests.serve.wire import Answer, chat


def post(server: Server, body: Any, path: str = "/v1/completions") -> Answer:
    """The answer, while health is looked at."""
    with HealthWatch(server), server.connect(timeout=60) as connection:
        return connection.post(body, path)


@pytest.mark.parametrize(
    ("biases", "words"),
    [
        ([["a b c d " * 500, 1]] * 1024, "at most 256 characters"),
        ([["abc" * 80, 1]] * 1024, "more than 2048 tokens"),
    ],
)
@pytest.mark.parametrize("n", [1, 128])
def test_h054_texts_of_a_bias_are_bounded(attacked: Server, biases: Any, words: str, n: int) -> None:
    """Four megabytes of them became two million tokens in each of 128 tasks, and the server was killed for hanging."""
    answer = post(attacked, chat(max_tokens=1, n=n, logit_bias=biases), "/v1/chat/completions")

    assert (answer.status, answer.error["param"]) == (400, "logit_bias")
    assert words in answer.error["message"]


@pytest.mark.parametrize("samplers", ["k" * 2**24, ["k"] * 65])
def test_h053_a_list_of_samplers_is_bounded(attacked: Server, samplers: Any) -> None:
    assert post(attacked, {"prompt": "a", "samplers": samplers}).error["param"] == "samplers"


def test_h027_names_of_members_to_be_shown_are_bounded(attacked: Server) -> None:
    answer = post(attacked, {"prompt": "a", "response_fields": ["a/" * 2**22]}, "/completion")

    assert answer.error["param"] == "response_fields[0]"


def test_h036_texts_among_token_ids_are_bounded(attacked: Server) -> None:
    answer = post(attacked, {"prompt": [1, *["a"] * 200_000], "max_tokens": 1})

    assert (answer.status, answer.error["param"]) == (400, "prompt")


def test_h028_half_a_million_tokens_are_spelled_in_turns(attacked: Server) -> None:
    answer = post(attacked, {"tokens": [100] * 500_000}, "/detokenize")

    assert len(answer.json["content"]) == 500_000


def test_h028_thousands_of_texts_are_split_in_turns(attacked: Server) -> None:
    answer = post(attacked, {"content": ["a"] * 8192, "with_pieces": True}, "/tokenize")

    assert len(answer.json["tokens"]) == 8192


def test_h028_thousands_of_inputs_are_read_in_turns(attacked: Server) -> None:
    answer = post(attacked, {"input": ["a b c d " * 100] * 2048}, "/v1/embeddings")

    assert answer.status in (200, 501), answer.body[:300]


@pytest.mark.holds_the_hub("two thousand answers in one body")
def test_h037_thousands_of_tasks_are_taken_in_turns(start: Any) -> None:
    server = start.start(model="synthetic:?tokens_per_s=0", slots=64)
    answer = post(server, {"prompt": [[5] * 1000] * 64, "n": 32, "n_predict": 0}, "/completion")

    assert len(answer.json) == 64 * 32


def test_h032_hundreds_of_thousands_of_parts_are_decoded_at_once(attacked: Server) -> None:
    answer = post(attacked, {"prompt": [[5]] * 300_000, "max_tokens": 1})

    assert (answer.status, answer.error["param"]) == (400, "prompt")


def test_h027_a_long_value_is_not_sent_back(attacked: Server) -> None:
    answer = post(attacked, chat(reasoning_format="x" * 2**20), "/v1/chat/completions")

    assert (answer.status, answer.error["param"]) == (400, "reasoning_format")
    assert len(answer.body) < 1000
