"""Rows 22 to 28 and 51 to 56: what stands in a body."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hardening import attacks
from tests.hardening.attacks import Attack
from tests.hardening.watch import HealthWatch
from tests.serve.server import Server, Servers
from tests.serve.wire import Connection, chat

Bear = Callable[[Attack], None]


def each(table: list[Attack]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attack", table, ids=str)


@each(attacks.NO_JSON)
def test_h022_what_is_no_json_object_is_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.TEXTS)
def test_h023_what_is_no_text_is_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.NUMBERS)
def test_h024_numbers_that_nobody_can_hold_are_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.DEEP)
def test_h025_what_is_nested_too_deeply_is_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


@each(attacks.MANY)
def test_h026_very_many_keys_are_refused(bear: Bear, attack: Attack) -> None:
    bear(attack)


FIELDS = [
    "model", "messages", "max_tokens", "max_completion_tokens", "n_predict", "temperature", "top_p", "min_p", "top_k",
    "presence_penalty", "frequency_penalty", "repeat_penalty", "repeat_last_n", "logit_bias", "seed", "stop", "n",
    "logprobs", "top_logprobs", "stream", "stream_options", "ignore_eos", "cache_prompt", "response_format", "tools",
    "tool_choice", "grammar", "json_schema", "typical_p", "nobody_knows_this",
]  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)


@pytest.fixture(scope="module")
def quick(_kept: Servers) -> Server:
    """What sets no limit to an answer, or takes one away, gets all of the context: at once."""
    return _kept.start(model="synthetic:?tokens_per_s=0", ctx=128)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3))
def test_h027_any_value_of_any_field_is_taken_or_refused_by_name(quick: Server, fields: dict[str, Any]) -> None:
    with quick.connect() as connection:
        answer = connection.post(chat(max_tokens=1, n=1) | fields)

    assert answer.status in (200, 400, 404), answer.body
    if answer.status == 400:
        assert set(answer.error) >= {"message", "type", "param", "code"}
        assert answer.error["param"] or answer.error["code"]


@pytest.mark.parametrize(
    "content",
    [json.dumps("x" * 2**23), '"' + "\\n" * 2**22 + '"', json.dumps([{"type": "text", "text": "x"}] * 100_000)],
    ids=["letters", "escapes", "parts"],
)
def test_h028_eight_mebibytes_stop_nobody(attacked: Server, content: str) -> None:
    body = b'{"max_tokens":1,"messages":[{"role":"user","content":' + content.encode() + b"}]}"

    def ask() -> None:
        with attacked.connect() as connection:
            statuses.append(connection.post(body).status)

    statuses: list[int] = []
    with HealthWatch(attacked):
        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(30)

    assert len(statuses) == 3
    assert set(statuses) <= {200, 400}  # a prompt of that size is too long


def refused(server: Server, fields: dict[str, Any]) -> str | None:
    """The parameter that is at fault."""
    with server.connect() as connection:
        answer = connection.post(chat() | {"max_tokens": 1} | fields)
    assert answer.status == 400, answer.body
    return answer.error["param"]


def cases(name: str, *values: Any) -> list[Any]:
    return [pytest.param({name: value}, id=f"{name}={str(value)[:12]}") for value in values]


@pytest.mark.parametrize("fields", cases("max_tokens", -2, 0, 1.5, -(10**18), "5", True, [], 10**400))
def test_h051_max_tokens_that_cannot_be_is_refused(watched: Server, fields: dict[str, Any]) -> None:
    refused(watched, fields)


def test_h051_more_than_fits_ends_by_length(start: Servers) -> None:
    server = start.start(ctx=64, model="synthetic:?tokens_per_s=0")
    for max_tokens in (10**6, 2**31, 10**15, -1, None):
        with server.connect() as connection:
            answer = connection.post(chat(max_tokens=max_tokens))
        assert answer.status == 200, answer.body
        assert answer.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "fields",
    [
        *cases("n", 0, -1, 129, 10**9, 1.5, "2"),
        *[
            pytest.param({"logprobs": True, "top_logprobs": value}, id=f"top_logprobs={value}")
            for value in (-1, 21, 2**31 - 1, 1.5, "5")
        ],
    ],
)
def test_h052_how_many_is_bounded(watched: Server, fields: dict[str, Any]) -> None:
    refused(watched, fields)


@pytest.mark.parametrize("best_of", [-1, 10**9, "2"])
def test_h052_the_best_of_how_many_is_bounded(watched: Server, best_of: Any) -> None:
    with watched.connect() as connection:
        answer = connection.post({"prompt": "x", "max_tokens": 1, "best_of": best_of}, "/v1/completions")

    assert (answer.status, answer.error["param"]) == (400, "best_of")


@pytest.mark.parametrize(
    "fields",
    [
        *cases("temperature", -0.1, -(10**300), "1", True, [1]),
        *cases("top_p", -0.1, 1.1, "1"),
        *cases("min_p", -0.1, 1.1),
        *cases("presence_penalty", -2.1, 2.1),
        *cases("frequency_penalty", -2.1, 2.1),
        *cases("repeat_last_n", -2, 1.5, 10**30),
        *cases("top_k", 1.5, 10**30, "5"),
    ],
)
def test_h053_sampling_numbers_out_of_range_are_refused(watched: Server, fields: dict[str, Any]) -> None:
    assert refused(watched, fields) == next(iter(fields))


@pytest.mark.parametrize(
    "fields",
    [
        *cases("logit_bias", "x", [1], {"-1": 1}, {"1e3": 1}, {str(2**40): 1}, {"1": 101}, {"1": -101}, {"1": "x"}),
        pytest.param({"logit_bias": {str(token): 0 for token in range(1100)}}, id="logit_bias of 1100"),
    ],
)
def test_h054_biases_that_cannot_be_are_refused(watched: Server, fields: dict[str, Any]) -> None:
    assert (refused(watched, fields) or "").startswith("logit_bias")


@pytest.mark.parametrize(
    "fields",
    [
        *cases("stop", "", [""], 5, [5], ["x"] * 65, ["x" * 257]),
        *cases("seed", 1.5, "5", 2**64, -(2**64), True),
    ],
)
def test_h055_stops_and_seeds_that_cannot_be_are_refused(watched: Server, fields: dict[str, Any]) -> None:
    assert (refused(watched, fields) or "").startswith(next(iter(fields)))


def test_h054_long_texts_of_biases_are_refused_before_they_are_read(watched: Server) -> None:
    """Reading them would hold the hub, which any test with a server fails of."""
    biases = {f"{number}{'x' * 9000}": 1 for number in range(1000)}
    with watched.connect() as connection:
        answer = connection.post({"prompt": "a", "logit_bias": biases}, "/completion")

    assert (answer.status, answer.json["error"]["param"]) == (400, "logit_bias")


def test_h056_what_is_the_engine_s_own_means_nothing_from_outside(watched: Server) -> None:
    private = {"n_ctx": 10**9, "n_batch": -1, "cache_type_k": "x", "mmproj": "/etc/passwd", "slot_id": 99, "owner": 7}
    private |= {"caller": "somebody", "model_path": "/etc/passwd", "threads": 10**6, "reader_bytes": 1, "n_seq_max": 0}
    with watched.connect() as connection:
        answer = connection.post(chat(max_tokens=2) | private)

    assert answer.status == 200
    assert answer.json["usage"]["completion_tokens"] == 2


def test_h023_nul_is_text_and_cuts_nothing(watched: Server) -> None:
    def n_tokens(connection: Connection, content: str) -> int:
        return int(connection.post(chat(content, max_tokens=1)).json["usage"]["prompt_tokens"])

    with watched.connect() as connection:
        assert n_tokens(connection, "one\0" + "two " * 50) > n_tokens(connection, "one") + 50
