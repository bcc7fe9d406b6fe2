"""llama-server's own surface over HTTP with the real model; expected tokens and texts are those of llama-server."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.server import Server
from tests.serve.wire import CHAT, Answer, Connection, events

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"
GREEDY = {"prompt": PROMPT, "temperature": 0, "n_predict": 5}
TEXT, TOKENS = " Paris.\n\nThe", [7042, 30, 198, 198, 504]


@pytest.fixture
def connection(real: Server) -> Iterator[Connection]:
    with real.connect(timeout=60) as connection:
        yield connection


def good(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json


# Completions.


def test_a_greedy_completion_is_llama_server_s(connection: Connection) -> None:
    answer = good(connection.post({**GREEDY, "return_tokens": True}, "/completion"))

    assert (answer["content"], answer["tokens"], answer["prompt"]) == (TEXT, TOKENS, PROMPT)
    assert (answer["tokens_evaluated"], answer["tokens_predicted"], answer["tokens_cached"]) == (5, 5, 9)
    assert (answer["stop_type"], answer["truncated"], answer["has_new_line"]) == ("limit", False, True)
    assert answer["timings"]["prompt_n"] + answer["timings"]["cache_n"] == 5
    assert answer["timings"]["prompt_ms"] > 0


def test_a_streamed_completion_is_the_same(connection: Connection) -> None:
    *pieces, last = events(connection.post({**GREEDY, "stream": True}, "/completions").body)

    assert "".join(piece["content"] for piece in pieces) == TEXT
    assert [token for piece in pieces for token in piece["tokens"]] == TOKENS
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", 5)


def test_a_text_ends_where_a_line_is_indented_too_little(connection: Connection) -> None:
    editor = {**GREEDY, "n_indent": 4, "n_predict": 500, "return_tokens": True}

    whole = good(connection.post(editor, "/completion"))
    *pieces, last = events(connection.post({**editor, "stream": True}, "/completion").body)

    assert whole["content"] == "".join(piece["content"] for piece in pieces) == " Paris.\n"
    assert whole["tokens"] == [token for piece in pieces for token in piece["tokens"]] == TOKENS[:3]
    for end in (whole, last):
        assert (end["stop_type"], end["tokens_predicted"], end["truncated"]) == ("limit", 4, False)
        assert end["timings"]["predicted_n"] == 4, "the job was cancelled there"


def test_each_of_several_texts_ends_by_itself(connection: Connection) -> None:
    prompts = [PROMPT, "def add(a, b):\n    "]
    body = {**GREEDY, "prompt": prompts, "n_indent": 4, "n_predict": 24}

    first, second = good(connection.post(body, "/completion"))

    assert (first["content"], first["tokens_predicted"]) == (" Paris.\n", 4)
    assert second["tokens_predicted"] > 4
    assert all(line.startswith("    ") for line in second["content"].splitlines()[1:])


def test_ids_texts_and_both_in_a_row_are_the_same_prompt(connection: Connection) -> None:
    tokens = good(connection.post({"content": PROMPT}, "/tokenize"))["tokens"]
    prompts = [PROMPT, tokens, {"prompt_string": PROMPT}, [*tokens[:2], " of France is"]]

    answers = good(connection.post({**GREEDY, "prompt": prompts}, "/completion"))

    assert [answer["content"] for answer in answers] == [TEXT] * 4


def test_probabilities_are_the_model_s_own_and_each_token_has_them(connection: Connection) -> None:
    shown = good(connection.post({**GREEDY, "n_probs": 3}, "/completion"))["completion_probabilities"]

    assert [token["id"] for token in shown] == TOKENS
    # llama-server: 7042 " Paris" -0.248, 260 " the" -2.785
    first = shown[0]
    assert first["logprob"] == pytest.approx(-0.248, abs=0.05)
    assert [top["id"] for top in first["top_logprobs"][:2]] == [7042, 260]
    assert all(len(token["top_logprobs"]) == 3 for token in shown)


def test_probabilities_after_sampling_add_up(connection: Connection) -> None:
    body = {**GREEDY, "temperature": 1, "n_predict": 2, "n_probs": 40, "post_sampling_probs": True, "min_p": 0}

    for token in good(connection.post(body, "/completion"))["completion_probabilities"]:
        assert sum(top["prob"] for top in token["top_probs"]) == pytest.approx(1, abs=1e-3)
        assert 0 < token["prob"] <= 1


def test_a_stop_string_says_which_it_was(connection: Connection) -> None:
    answer = good(connection.post({**GREEDY, "stop": ["no", ".\n"]}, "/completion"))

    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == (" Paris", "word", ".\n")


def test_a_schema_holds(connection: Connection) -> None:
    body = {"prompt": "Is it? ", "json_schema": {"type": "boolean"}, "n_predict": 8}

    assert good(connection.post(body, "/completion"))["content"] in ("true", "false")


def test_no_tokens_only_read_the_prompt(connection: Connection) -> None:
    answer = good(connection.post({"prompt": "Some words", "n_predict": 0}, "/completion"))

    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")
    assert answer["timings"]["prompt_ms"] > 0


def test_progress_is_told_before_and_after_each_piece_of_the_prompt(connection: Connection) -> None:
    prompt = "the quick brown fox jumps over the lazy dog " * 100
    body = {"prompt": prompt, "n_predict": 1, "stream": True, "return_progress": True, "cache_prompt": False}

    told = [one for one in events(connection.post(body, "/completion").body) if "prompt_progress" in one]

    processed = [one["prompt_progress"]["processed"] for one in told]
    assert processed[0] == 0
    assert processed == sorted(set(processed))
    assert processed[-1] == told[-1]["prompt_progress"]["total"] > 900
    assert told[0]["timings"]["prompt_ms"] == 0 < told[-1]["timings"]["prompt_ms"]


# Text completions.


def test_a_prompt_is_scored_without_generating(connection: Connection) -> None:
    body = {"prompt": PROMPT, "echo": True, "logprobs": 2, "max_tokens": 0}

    answer = good(connection.post(body, "/v1/completions"))

    (choice,) = answer["choices"]
    shown = choice["logprobs"]
    assert choice["text"] == PROMPT
    assert "".join(shown["tokens"]) == PROMPT
    assert shown["token_logprobs"][0] is None
    assert all(-20 < logprob < 0 for logprob in shown["token_logprobs"][1:])
    for token, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
        assert PROMPT[offset:].startswith(token)
    assert answer["usage"]["completion_tokens"] == 0


def test_scores_of_a_prompt_are_those_of_generating_it(connection: Connection) -> None:
    made = good(
        connection.post({"prompt": PROMPT, "temperature": 0, "max_tokens": 3, "logprobs": 0}, "/v1/completions")
    )
    text = made["choices"][0]["text"]

    scored = good(
        connection.post({"prompt": PROMPT + text, "echo": True, "logprobs": 0, "max_tokens": 0}, "/v1/completions")
    )

    generated = made["choices"][0]["logprobs"]
    assert scored["choices"][0]["logprobs"]["tokens"][-3:] == generated["tokens"]
    assert scored["choices"][0]["logprobs"]["token_logprobs"][-3:] == pytest.approx(
        generated["token_logprobs"], abs=0.1
    )


def test_the_best_of_several_is_the_likeliest(connection: Connection) -> None:
    body = {"prompt": "A", "max_tokens": 4, "seed": 1, "temperature": 1.5, "logprobs": 0}
    every = good(connection.post({**body, "n": 4}, "/v1/completions"))["choices"]

    best = good(connection.post({**body, "best_of": 4}, "/v1/completions"))

    means = {
        choice["text"]: math.fsum(choice["logprobs"]["token_logprobs"]) / len(choice["logprobs"]["tokens"])
        for choice in every
    }
    assert best["choices"][0]["text"] == max(means, key=lambda text: means[text])
    assert len(best["choices"]) == 1
    assert best["usage"]["completion_tokens"] == 16


# Embeddings.


def test_embeddings_are_of_unit_length_in_either_form(connection: Connection) -> None:
    inputs = ["I believe the meaning of life is", "hello"]
    plain = good(connection.post({"input": inputs}, "/v1/embeddings"))
    packed = good(connection.post({"input": inputs, "encoding_format": "base64"}, "/v1/embeddings"))
    native = good(connection.post({"content": inputs}, "/embedding"))

    vector = plain["data"][0]["embedding"]
    assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-3)
    unpacked = struct.unpack(f"<{len(vector)}f", base64.b64decode(packed["data"][0]["embedding"]))
    assert unpacked == pytest.approx(vector, abs=1e-3)
    assert native[0]["embedding"][0] == pytest.approx(vector, abs=1e-3)
    assert plain["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_a_model_that_ranks_nothing_says_so(connection: Connection) -> None:
    answer = connection.post({"query": "q", "documents": ["a"]}, "/rerank")

    assert (answer.status, answer.error["type"]) == (501, "not_supported_error")


# Tokens and templates.


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"content": "What is the capital of France ?"}, [1780, 314, 260, 3575, 282, 4649, 9148]),
        ({"content": "Hé<|im_end|>"}, [56, 2756, 2]),
        ({"content": ""}, []),
    ],
)
def test_tokens_are_llama_server_s(connection: Connection, body: dict[str, Any], tokens: list[int]) -> None:
    assert good(connection.post(body, "/tokenize")) == {"tokens": tokens}
    assert good(connection.post({"tokens": tokens}, "/detokenize"))["content"] == body["content"]


def test_pieces_of_a_character_are_bytes(connection: Connection) -> None:
    shown = good(connection.post({"content": "媽", "with_pieces": True}, "/tokenize"))["tokens"]

    assert shown == [{"id": 176, "piece": [229]}, {"id": 120, "piece": [170]}, {"id": 138, "piece": [189]}]


def test_a_template_is_applied_as_in_a_chat(connection: Connection) -> None:
    messages = [{"role": "user", "content": "Say hi"}]

    prompt = good(connection.post({"messages": messages}, "/apply-template"))["prompt"]
    chat = good(connection.post({"messages": messages, "max_tokens": 1}, CHAT))

    assert prompt.endswith("<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n")
    tokens = good(connection.post({"content": prompt}, "/tokenize"))["tokens"]
    assert len(tokens) == chat["usage"]["prompt_tokens"]


# The server.


def test_properties_tell_the_model_and_no_folder(connection: Connection) -> None:
    answer = connection.ask("GET", "/props")

    shown = good(answer)
    assert shown["model_path"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (shown["total_slots"], shown["default_generation_settings"]["n_ctx"]) == (8, 1024)
    assert shown["kv_unified"] is False
    assert (shown["bos_token"], shown["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert b"site-packages" not in answer.body


def test_llama_server_s_metrics_are_there_under_its_names(real: Server, connection: Connection) -> None:
    good(connection.post(GREEDY, "/completion"))
    real.wait_idle()

    answer = connection.ask("GET", "/metrics")

    text = answer.body.decode()
    assert int(answer.headers["process-start-time-unix"]) > 1e9
    counters = ["prompt_tokens", "prompt_seconds", "tokens_predicted", "tokens_predicted_seconds", "n_decode"]
    for name in counters:
        assert f"# TYPE llamacpp:{name}_total counter\n# " not in text
        (value,) = re.findall(rf"^llamacpp:{name}_total (\S+)$", text, re.MULTILINE)
        assert float(value) > 0
    for name in ("prompt_tokens_seconds", "predicted_tokens_seconds", "n_busy_slots_per_decode", "n_tokens_max"):
        (value,) = re.findall(rf"^llamacpp:{name} (\S+)$", text, re.MULTILINE)
        assert float(value) > 0
    assert "llamacpp:requests_processing 0.0\n" in text


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/props"), ("POST", "/slots/0?action=save"), ("POST", "/infill")],
)
def test_what_is_off_or_cannot_be_is_not_offered(connection: Connection, method: str, path: str) -> None:
    answer = connection.ask(method, path, {"input_prefix": "a", "input_suffix": "b"})

    assert (answer.status, answer.error["type"]) == (501, "not_supported_error")


def test_a_server_without_adapters_has_an_empty_list_of_them(connection: Connection) -> None:
    assert good(connection.ask("GET", "/lora-adapters")) == []
    assert good(connection.post([], "/lora-adapters")) == {"success": True}
    assert connection.post([{"id": 0, "scale": 1}], "/lora-adapters").status == 400
