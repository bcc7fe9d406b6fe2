"""Text completions beyond the text: echo, logprobs, suffix and the best of several."""

import json
from typing import Any

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Candidate, Chunk, Finish, Job, ModelCard, TokenInfo, Tokens
from corosrv.dialects.generation.call import Answer, Call
from corosrv.dialects.openai import completions
from corosrv.web.http import body_reader
from tests.support.answers import complete_json
from tests.support.vocabularies import INFILL, MIDDLE, PREFIX, SUFFIX, ByteVocabulary

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
CARD = ModelCard("tiny", created=1)


def call(vocabulary: ByteVocabulary | None = None, **sent: Any) -> Call:
    raw = json.dumps({"prompt": "Hi", **sent}).encode()
    fields = body_reader.decode(REQUEST, raw, completions.decoder)
    return completions.call(fields, CARD, lambda: vocabulary or ByteVocabulary())


def job(**sent: Any) -> Job:
    made = call(**sent).job
    assert isinstance(made, Job)
    return made


def answering(vocabulary: ByteVocabulary | None = None, **sent: Any) -> Answer:
    return call(vocabulary, **sent).answer


def token(piece: bytes, logprob: float | None = -1.0, *top: tuple[bytes, float]) -> TokenInfo:
    return TokenInfo(1, piece, logprob, tuple(Candidate(2, other, likely) for other, likely in top))


def chunk(index: int, *tokens: TokenInfo, last: bool = False, prompt: tuple[TokenInfo, ...] = ()) -> Chunk:
    words = b"".join(one.piece for one in tokens).decode()
    finish = Finish.LENGTH if last else None
    return Chunk(index, words, len(tokens), finish, tokens=tokens, prompt_info=prompt)


def events(answer: Answer, chunks: list[Chunk]) -> list[Any]:
    """The choices of a stream, its comments and its end left out."""
    lines = (answer.first() + answer.events(chunks)).decode().split("\n\n")
    sent = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return [event["choices"][0] for event in sent if event["choices"]]


# Log probabilities.


def test_logprobs_ask_for_the_tokens_and_their_rivals():
    assert job(logprobs=3).sampling.n_probs == 3
    assert job(logprobs=0).sampling.n_probs == 0
    assert job().sampling.n_probs == -1


@pytest.mark.parametrize("wrong", [-1, 21, True, "1", 1.5])
def test_logprobs_out_of_range_are_refused(wrong):
    with pytest.raises(Refused) as refused:
        call(logprobs=wrong)

    assert refused.value.param == "logprobs"


def test_logprobs_have_the_shape_that_completions_always_had():
    tokens = (token(b" a", -0.5, (b" a", -0.5), (b" b", -1.5)), token(b"\xc3\xa9", -2.0, (b" x", -0.1)))

    shown = complete_json(answering(logprobs=2), [chunk(0, *tokens, last=True)])["choices"][0]["logprobs"]

    assert shown == {
        "tokens": [" a", "é"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{" a": -0.5, " b": -1.5}, {" x": -0.1, "é": -2.0}],
        "text_offset": [0, 2],
    }


def test_offsets_count_characters_and_half_a_character_is_spelled_in_bytes():
    tokens = (token(b"\xe5\xaa"), token(b"\xbd"), token(b"!"))

    shown = complete_json(answering(logprobs=0), [chunk(0, *tokens, last=True)])["choices"][0]["logprobs"]

    assert shown["tokens"] == ["bytes:\\xe5\\xaa", "bytes:\\xbd", "!"]
    assert shown["text_offset"] == [0, 0, 1]


def test_streamed_logprobs_together_are_those_of_the_whole():
    pieces = [chunk(0, token(b"a")), chunk(0, token(b"bc")), chunk(0, token(b"d"), last=True)]

    whole = complete_json(answering(logprobs=1), pieces)["choices"][0]
    streamed = events(answering(logprobs=1, stream=True), pieces)

    shown = [choice["logprobs"] for choice in streamed if choice["logprobs"]]
    assert {name: [one for part in shown for one in part[name]] for name in whole["logprobs"]} == whole["logprobs"]
    assert "".join(choice["text"] for choice in streamed) == whole["text"] == "abcd"
    assert streamed[-1] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}


# Echo.


@pytest.mark.parametrize(
    ("prompt", "text"), [("Hi", "Hi!"), ([72, 105], "Hi!"), ([72, "i"], "Hi!"), ({"prompt_string": "Hi"}, "Hi!")]
)
def test_an_echo_puts_the_prompt_in_front(prompt, text):
    chunks = [chunk(0, token(b"!"), last=True)]

    assert complete_json(answering(prompt=prompt, echo=True), chunks)["choices"][0]["text"] == text
    streamed = events(answering(prompt=prompt, echo=True, stream=True), chunks)
    assert "".join(choice["text"] for choice in streamed) == text


def test_each_choice_echoes_its_own_prompt():
    sent = {"prompt": ["a", "b"], "n": 2, "echo": True}
    chunks = [chunk(index, token(b"%d" % index), last=True) for index in range(4)]

    whole = complete_json(call(**sent).answer, chunks)["choices"]
    streamed = events(call(**sent, stream=True).answer, chunks)

    assert [choice["text"] for choice in whole] == ["a0", "a1", "b2", "b3"]
    for choice in whole:
        texts = [one["text"] for one in streamed if one["index"] == choice["index"]]
        assert "".join(texts) == choice["text"]


def test_an_echo_with_logprobs_and_no_tokens_scores_the_prompt():
    sent = {"echo": True, "logprobs": 1, "max_tokens": 0}
    asked = job(**sent)
    prompt = (token(b"H", None), token(b"i", -3.0, (b"o", -0.5)))
    chunks = [chunk(0, last=True, prompt=prompt)]

    choice = complete_json(answering(**sent), chunks)["choices"][0]

    assert (asked.scores_prompt, asked.max_tokens) == (True, 0)
    assert choice["text"] == "Hi"
    assert choice["logprobs"] == {
        "tokens": ["H", "i"],
        "token_logprobs": [None, -3.0],
        "top_logprobs": [None, {"o": -0.5, "i": -3.0}],
        "text_offset": [0, 1],
    }
    assert events(answering(**sent, stream=True), chunks)[0]["logprobs"] == choice["logprobs"]


def test_a_token_in_front_of_the_prompt_moves_no_offset():
    vocabulary = ByteVocabulary(adds_bos=True)
    chunks = [chunk(0, token(b"!"), last=True, prompt=(token(b"<s>", None), token(b"H"), token(b"i")))]

    shown = complete_json(answering(vocabulary, echo=True, logprobs=0), chunks)["choices"][0]

    assert shown["text"] == "Hi!"
    assert shown["logprobs"]["text_offset"] == [0, 0, 1, 2]


def test_a_prompt_that_is_scored_in_pieces_is_echoed_once():
    sent = {"echo": True, "logprobs": 0}
    chunks = [
        chunk(0, prompt=(token(b"H", None),)),
        chunk(0, prompt=(token(b"i"),)),
        chunk(0, token(b"!"), last=True),
    ]

    whole = complete_json(answering(**sent), chunks)["choices"][0]
    streamed = events(answering(**sent, stream=True), chunks)

    assert whole["logprobs"]["tokens"] == ["H", "i", "!"]
    assert whole["logprobs"]["text_offset"] == [0, 1, 2]
    assert [choice["text"] for choice in streamed] == ["Hi", "", "!", ""]
    assert [choice["logprobs"]["text_offset"] for choice in streamed[:3]] == [[0], [1], [2]]


def test_an_echo_without_logprobs_scores_nothing():
    assert not job(echo=True).scores_prompt
    assert not job(logprobs=1).scores_prompt


# The best of several.


def test_the_likeliest_answers_are_shown_and_all_are_counted():
    asked = call(best_of=3, n=2)
    chunks = [
        chunk(0, token(b"bad", -9.0), last=True),
        chunk(1, token(b"good", -1.0), last=True),
        chunk(2, token(b"so", -2.0), token(b"so", -4.0), last=True),
    ]

    whole = complete_json(asked.answer, chunks)

    assert asked.job.n == 3
    assert asked.job.sampling.n_probs == 0
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(0, "good"), (1, "soso")]
    assert whole["choices"][0]["logprobs"] is None
    assert whole["usage"]["completion_tokens"] == 4


def test_each_prompt_has_its_best():
    chunks = [chunk(index, token(b"%d" % index, -float(index % 2)), last=True) for index in range(4)]

    whole = complete_json(call(prompt=["a", "b"], best_of=2, echo=True).answer, chunks)

    assert [choice["text"] for choice in whole["choices"]] == ["a0", "b2"]


@pytest.mark.parametrize(
    "sent", [{"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}, {"best_of": 0}, {"best_of": 129}]
)
def test_a_best_of_that_cannot_be_is_refused(sent):
    with pytest.raises(Refused) as refused:
        call(**sent)

    assert refused.value.param == "best_of"


# A schema.


def test_a_schema_is_a_grammar_and_stands_alone():
    assert "root" in job(json_schema={"type": "integer"}).sampling.grammar
    with pytest.raises(Refused, match="json_schema"):
        call(json_schema={}, grammar='root ::= "x"')


# A suffix.


def test_a_suffix_makes_the_prompt_one_with_a_hole():
    asked = call(ByteVocabulary(INFILL), prompt=["a", "b"], suffix="z").job

    assert asked.prompts == tuple(Tokens((PREFIX, *one, SUFFIX, *b"z", MIDDLE)) for one in (b"a", b"b"))


def test_an_echo_of_a_hole_is_what_stands_before_it():
    answer = answering(ByteVocabulary(INFILL), suffix="z", echo=True)

    assert complete_json(answer, [chunk(0, token(b"!"), last=True)])["choices"][0]["text"] == "Hi!"


def test_a_suffix_is_refused_by_a_model_without_the_tokens_and_with_prompts_of_ids():
    with pytest.raises(NotSupported, match="suffix"):
        call(suffix="z")
    with pytest.raises(Refused, match="suffix"):
        call(ByteVocabulary(INFILL), prompt=[1], suffix="z")
    with pytest.raises(Refused, match="suffix"):
        call(ByteVocabulary(INFILL), suffix="z", echo=True, logprobs=1)


@pytest.mark.parametrize("nothing", ["", None])
def test_an_empty_suffix_asks_for_nothing(nothing):
    assert call(suffix=nothing).job == call().job
