"""SmolLM2 behind the whole server: texts, usage and timings, alone and in company."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.serve.server import Server
from tests.serve.wire import chat, events, text_of

pytestmark = pytest.mark.model
QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "Count from one to ten.",
    "What do bees make?",
    "Say hello in Spanish.",
    "How many legs has a spider?",
    "Finish: once upon a time",
]


def question(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": "any",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 32,
    } | fields


@pytest.fixture
def client(real: Server) -> Iterator[openai.OpenAI]:
    with real.client(timeout=60) as client:
        yield client


def whole(client: openai.OpenAI, fields: dict[str, Any]) -> str:
    return client.chat.completions.create(**fields).choices[0].message.content or ""


def streamed(client: openai.OpenAI, fields: dict[str, Any]) -> str:
    with client.chat.completions.create(**fields, stream=True) as stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_greedy_text_is_the_same_streamed_or_not_and_among_eight(client: openai.OpenAI) -> None:
    alone = [whole(client, question(text)) for text in QUESTIONS]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: streamed(client, question(text)), QUESTIONS))
        mixed = list(pool.map(lambda text: whole(client, question(text)), reversed(QUESTIONS)))

    assert together == alone
    assert mixed == alone[::-1]
    assert len(set(alone)) == len(QUESTIONS)


def test_a_seed_gives_its_text_again_also_among_others(client: openai.OpenAI) -> None:
    fields = question(QUESTIONS[2], temperature=1.5, seed=42)
    alone = whole(client, fields)
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(whole, client, question(text, temperature=1.5)) for text in QUESTIONS[:7]]
        again = streamed(client, fields)
        assert all(other.result() for other in others)

    assert again == alone
    assert whole(client, fields | {"seed": 43}) != alone


def test_usage_and_timings_add_up(real: Server) -> None:
    with real.connect() as connection:
        answer = connection.post(question(QUESTIONS[3], max_tokens=20)).json
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last, _ = events(connection.post(question(QUESTIONS[3], max_tokens=20, **options)).body)

    usage, timings = answer["usage"], answer["timings"]
    assert usage["completion_tokens"] == timings["predicted_n"] <= 20
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"] > 20
    assert all(math.isfinite(value) and value >= 0 for value in timings.values())
    assert timings["predicted_per_second"] > 1
    assert {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }


def test_a_stop_string_across_tokens_ends_the_text_before_it(client: openai.OpenAI, real: Server) -> None:
    full = whole(client, question(QUESTIONS[0]))
    stop = full[len(full) // 2 - 3 : len(full) // 2 + 3]

    with real.connect() as connection:
        *chunks, last, _ = events(connection.post(question(QUESTIONS[0], stop=[stop], stream=True)).body)

    assert text_of([*chunks, last]) == full[: full.index(stop)]
    assert last["choices"][0]["finish_reason"] == "stop"


def test_every_event_is_whole_characters(real: Server) -> None:
    fields = question("Repeat these: \U0001f30a\U0001f600 \u00e9\u00e8 \u65e5\u672c\u8a9e", temperature=1.2, seed=7)
    with real.connect() as connection:
        for max_tokens in range(1, 12, 3):
            chunks = events(connection.post(fields | {"max_tokens": max_tokens, "stream": True}).body)
            assert "\ufffd" not in text_of(chunks)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(real: Server) -> None:
    with real.connect() as connection:
        answer = connection.post(chat("word " * 1500))

    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert answer.error["n_prompt_tokens"] > 1500
    assert answer.error["n_ctx"] == 1024
    assert "1024" in answer.error["message"]


def test_a_full_context_ends_by_length(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="any", prompt="one two three " * 330, temperature=0, extra_body={"ignore_eos": True}
    )

    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert 1023 <= answer.usage.total_tokens <= 1025


def test_control_markers_in_a_message_are_text(real: Server) -> None:
    def n_prompt(content: str) -> int:
        with real.connect() as connection:
            count: int = connection.post(chat(content, max_tokens=1)).json["usage"]["prompt_tokens"]
            return count

    assert n_prompt("<|im_end|>") - n_prompt("") > 1


def test_a_banned_token_does_not_come(client: openai.OpenAI) -> None:
    plain = whole(client, question(QUESTIONS[0], max_tokens=8))

    first = plain.split()[0]

    banned = whole(client, question(QUESTIONS[0], max_tokens=8, extra_body={"logit_bias": [[first, False]]}))

    assert not banned.startswith(first)


def test_more_clients_than_slots_are_all_answered(client: openai.OpenAI, real: Server) -> None:
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda i: whole(client, question(QUESTIONS[i % 8], max_tokens=8)), range(16)))

    assert texts[:8] == texts[8:]
    real.wait_idle()


def test_the_real_model_is_listed_with_what_it_is(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    meta = model.model_dump()["meta"]

    assert model.id == "SmolLM2-135M-Instruct.Q4_1"
    assert (meta["n_vocab"], meta["n_ctx"], meta["n_ctx_train"]) == (49152, 1024, 8192)
    assert 100e6 < meta["n_params"] < 200e6
