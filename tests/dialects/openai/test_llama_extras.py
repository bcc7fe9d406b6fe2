"""What llama-server's clients are told beside OpenAI's answers: progress, timings of each token, the native answer."""

import json
from typing import Any

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Chunk, Finish, Job, ModelCard, TokenInfo
from corosrv.dialects.generation.call import Call
from corosrv.dialects.openai import completions
from corosrv.dialects.openai.chat import parse as chat_parse
from corosrv.dialects.openai.chat import schema as chat_schema
from corosrv.web.http import body_reader
from tests.support.answers import complete_json
from tests.support.vocabularies import ByteVocabulary

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
CARD = ModelCard("tiny", created=1, meta={"n_ctx": 100}, capabilities=frozenset(("completion", "chat")))
SO_FAR = {"prompt_tokens": 9, "cached_tokens": 1, "prompt_ms": 10.0, "decode_ms": 20.0}
READING = [Chunk(0, "", 0, read_tokens=n, prompt_tokens=9, cached_tokens=1, prompt_ms=5.0 * n) for n in (1, 5, 9)]


def chat(**sent: Any) -> Call:
    return made(chat_parse.call, chat_schema, {"messages": [{"role": "user", "content": "Hi"}], **sent})


def text(**sent: Any) -> Call:
    return made(completions.call, completions, {"prompt": "Hi", **sent})


def made(making: Any, schema: Any, sent: dict[str, Any]) -> Call:
    raw = json.dumps(sent).encode()
    fields = body_reader.decode(REQUEST, raw, schema.decoder)
    call: Call = making(fields, CARD, ByteVocabulary)
    return call


both = pytest.mark.parametrize("call", [chat, text])


def job(call: Call) -> Job:
    assert isinstance(call.job, Job)
    return call.job


def piece(words: str, index: int = 0, id: int = 5) -> Chunk:
    return Chunk(index, words, 1, tokens=(TokenInfo(id, words.encode(), -0.5),), read_tokens=9, **SO_FAR)


def last(index: int = 0) -> Chunk:
    return Chunk(index, "", 0, Finish.LENGTH, slot=3, read_tokens=9, **SO_FAR)


def events(call: Call, *chunks: Chunk) -> list[Any]:
    """Of a stream, without the first that tells the role."""
    lines = call.answer.events(list(chunks)).decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and not line.endswith("[DONE]")]


# How far it is.


@both
def test_progress_is_told_before_the_text_with_what_it_took(call):
    *told, hello, _ = events(call(stream=True, return_progress=True), *READING, piece("Hel"), last())

    assert [event["prompt_progress"] for event in told] == [
        {"total": 9, "cache": 1, "processed": 1, "time_ms": 5},
        {"total": 9, "cache": 1, "processed": 5, "time_ms": 25},
        {"total": 9, "cache": 1, "processed": 9, "time_ms": 45},
    ]
    assert [event["timings"]["prompt_n"] for event in told] == [0, 4, 8]
    assert [event["choices"][0].get("delta", {}) for event in told] == [{}] * 3
    assert "prompt_progress" not in hello


@both
def test_the_beginning_is_told_also_to_who_reads_late(call):
    first, second, *_ = events(call(stream=True, return_progress=True), READING[2], piece("Hel"), last())

    assert [event["prompt_progress"]["processed"] for event in (first, second)] == [1, 9]
    assert (first["timings"]["prompt_n"], first["timings"]["prompt_ms"]) == (0, 0.0)


@both
def test_tokens_that_came_together_are_told_one_by_one(call):
    merged = Chunk(0, "ab", 2, tokens=piece("a").tokens + piece("b").tokens, **SO_FAR)

    first, second, _ = events(call(stream=True, timings_per_token=True), merged, last())

    assert [event["timings"]["predicted_n"] for event in (first, second)] == [1, 2]


@both
def test_each_piece_may_come_with_the_timings_so_far(call):
    asked = call(stream=True, timings_per_token=True, stream_options={"include_usage": True})

    first, second, end, usage = events(asked, piece("a"), piece("b"), last())

    assert (first["timings"]["predicted_n"], first["timings"]["predicted_per_second"]) == (1, 0.0)
    assert (second["timings"]["predicted_n"], second["timings"]["predicted_per_second"]) == (2, 50.0)
    assert (first["timings"]["cache_n"], "timings" in end) == (1, False)
    assert (usage["timings"]["predicted_n"], first["usage"]) == (2, None)


@both
def test_telling_timings_does_not_tell_likelihoods(call):
    first, _ = events(call(stream=True, timings_per_token=True), piece("a"), last())

    assert first["choices"][0]["logprobs"] is None


@both
def test_nothing_is_told_to_who_does_not_ask(call):
    first, end = events(call(stream=True), piece("a"), last())

    assert {"timings", "prompt_progress"}.isdisjoint(first)
    assert "__verbose" not in end


@both
def test_only_a_stream_is_told_how_far_it_is(call):
    asked = {"return_progress": True, "timings_per_token": True}

    assert job(call(stream=True, **asked)).tells_progress
    assert job(call(stream=True, **asked)).sampling.n_probs == 0
    assert call(**asked).job == call().job


# The native answer.


@both
def test_a_verbose_answer_has_llama_server_s_own_beside_it(call):
    answer = complete_json(call(verbose=True, max_tokens=2).answer, [piece("Hel"), piece("lo"), last()])

    native = answer["__verbose"]
    assert (native["content"], native["tokens"], native["stop_type"]) == ("Hello", [], "limit")
    assert (native["id_slot"], native["tokens_evaluated"], native["tokens_predicted"]) == (3, 9, 2)
    assert native["generation_settings"]["n_predict"] == 2
    assert native["prompt"] == ("<s>Hi" if call is chat else "Hi")


@both
def test_a_verbose_answer_has_its_tokens_where_they_are_asked_for(call):
    asked = call(verbose=True, return_tokens=True)

    native = complete_json(asked.answer, [piece("Hel", id=5), piece("lo", id=6), last()])["__verbose"]

    assert native["tokens"] == [5, 6]
    assert job(asked).sampling.n_probs == 0


@both
def test_a_verbose_stream_has_it_at_the_end_of_each_choice(call):
    first, one, two = events(call(verbose=True, stream=True, n=2), piece("a"), last(0), last(1))

    assert "__verbose" not in first
    assert (one["__verbose"]["index"], two["__verbose"]["index"]) == (0, 1)
    assert (one["__verbose"]["content"], one["__verbose"]["tokens_predicted"]) == ("", 1)


@both
def test_a_token_without_text_is_no_event_of_a_verbose_stream(call):
    first, end = events(call(verbose=True, return_tokens=True, stream=True), piece("a"), piece(""), last())

    assert (first["choices"][0]["finish_reason"], end["choices"][0]["finish_reason"]) == (None, "length")


@both
def test_what_is_verbose_of_several_choices_is_the_first(call):
    answer = complete_json(call(verbose=True, n=2).answer, [piece("b", 1), last(1), piece("a", 0), last(0)])

    assert answer["__verbose"]["content"] == "a"


# How likely tokens were, under llama-server's name.


def listed(call: Call) -> Any:
    answer = complete_json(call.answer, [piece("Hel"), last()])
    return answer["choices"][0]["logprobs"]["content"][0]


@both
def test_likelihoods_have_llama_server_s_form_under_its_name(call):
    assert listed(call(n_probs=1)).items() >= {"id": 5, "token": "Hel", "logprob": -0.5, "top_logprobs": []}.items()
    (first, _) = events(call(n_probs=1, stream=True), piece("Hel"), last())
    assert first["choices"][0]["logprobs"]["content"][0]["id"] == 5


@both
def test_what_the_samplers_left_is_told_as_probabilities(call):
    asked = call(n_probs=1, post_sampling_probs=True)

    assert job(asked).sampling.post_sampling_probs
    assert listed(asked)["prob"] == pytest.approx(0.6065, abs=1e-4)
    assert listed(asked)["top_probs"] == []


@both
def test_probabilities_of_no_tokens_are_refused(call):
    with pytest.raises(Refused, match="post_sampling_probs"):
        call(post_sampling_probs=True)


def test_likelihoods_in_two_forms_are_refused():
    with pytest.raises(Refused, match="n_probs"):
        text(n_probs=1, logprobs=1)
