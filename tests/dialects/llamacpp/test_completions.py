"""llama-server's completions: bodies to jobs, chunks to answers and events."""

import json
import math
from typing import Any

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import NotOffered, NotSupported, Refused
from corosrv.contracts.jobs import Candidate, Chunk, Finish, Job, ModelCard, TokenInfo, Tokens
from corosrv.dialects.generation.call import Call
from corosrv.dialects.llamacpp import parse
from corosrv.web.http import body_reader
from tests.support.answers import complete_json
from tests.support.vocabularies import BOS, INFILL, MIDDLE, PREFIX, SUFFIX, ByteVocabulary

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
CARD = ModelCard("tiny", created=1, meta={"n_ctx": 100})
TERMINAL = {"prompt_tokens": 2, "cached_tokens": 1, "prompt_ms": 10.0, "decode_ms": 40.0, "slot": 3}


def make(making: Any, schema_decoder: Any, sent: dict[str, Any], vocabulary: ByteVocabulary) -> Call:
    raw = json.dumps(sent).encode()
    fields = body_reader.decode(REQUEST, raw, schema_decoder)
    return making(fields, CARD, vocabulary)


def call(vocabulary: ByteVocabulary | None = None, **sent: Any) -> Call:
    return make(parse.completion, parse.completion_decoder, {"prompt": "Hi", **sent}, vocabulary or ByteVocabulary())


def filling(vocabulary: ByteVocabulary, **sent: Any) -> Call:
    hole = {"input_prefix": "a", "input_suffix": "b"}
    return make(parse.filling, parse.infill_decoder, {**hole, **sent}, vocabulary)


def job(**sent: Any) -> Job:
    made = call(**sent).job
    assert isinstance(made, Job)
    return made


def token(id: int, piece: bytes, logprob: float = -1.0) -> TokenInfo:
    return TokenInfo(id, piece, logprob, (Candidate(id, piece, logprob),))


def chunk(index: int, *tokens: TokenInfo) -> Chunk:
    return Chunk(index, b"".join(one.piece for one in tokens).decode(), len(tokens), prompt_tokens=2, tokens=tokens)


def last(index: int, finish: Finish = Finish.LENGTH, **more: Any) -> Chunk:
    return Chunk(index, "", 0, finish, **(TERMINAL | more))


HELLO = [chunk(0, token(5, b"Hel")), chunk(0, token(6, b"lo"))]


def whole(*chunks: Chunk, **sent: Any) -> Any:
    return complete_json(call(**sent).answer, [*HELLO, *chunks])


def events(*chunks: Chunk, n_prompts: int = 1, **sent: Any) -> list[Any]:
    answer = call(stream=True, **sent).answer
    lines = (answer.first() + answer.events(list(chunks))).decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and line != ":"]


# The answer.


def test_an_answer_has_what_llama_server_s_has():
    answer = whole(last(0), n_predict=2)

    assert answer.pop("generation_settings")["n_predict"] == 2
    assert answer.pop("timings")["predicted_n"] == 2
    assert answer == {
        "index": 0,
        "content": "Hello",
        "tokens": [],
        "id_slot": 3,
        "stop": True,
        "model": "tiny",
        "tokens_predicted": 2,
        "tokens_evaluated": 2,
        "prompt": "Hi",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "limit",
        "stopping_word": "",
        "tokens_cached": 3,
    }


@pytest.mark.parametrize(
    ("end", "stop_type", "word"),
    [
        (last(0, Finish.STOP), "eos", ""),
        (last(0, Finish.LENGTH), "limit", ""),
        (last(0, Finish.STOP, stopping_word="##"), "word", "##"),
    ],
)
def test_an_answer_says_why_it_ended(end, stop_type, word):
    answer = whole(end)

    assert (answer["stop_type"], answer["stopping_word"]) == (stop_type, word)


@pytest.mark.parametrize(
    ("end", "n_tokens", "expected"),
    [
        (last(0), 98, True),
        (last(0), 97, False),
        (last(0, Finish.STOP), 98, False),
        (last(0, Finish.STOP, dropped_tokens=3), 1, True),
    ],
)
def test_an_answer_for_which_the_context_was_too_small_is_truncated(end, n_tokens, expected):
    answer = complete_json(call().answer, [Chunk(0, "x", n_tokens), end])

    assert answer["truncated"] is expected


def test_the_prompt_is_shown_as_the_model_reads_it():
    answer = complete_json(call(ByteVocabulary(adds_bos=True)).answer, [last(0)])

    assert answer["prompt"] == "<s>Hi"
    assert call(ByteVocabulary(adds_bos=True)).job.prompts == (Tokens((BOS, *b"Hi")),)


def test_the_sampler_that_editors_name_is_passed_over():
    for names in (["top_k", "top_p", "infill"], "kpi"):
        assert job(samplers=names).sampling.samplers == ("top_k", "top_p")


def test_a_new_line_anywhere_is_told():
    assert complete_json(call().answer, [Chunk(0, "a\nb", 2), last(0)])["has_new_line"] is True


@pytest.mark.parametrize("sent", [{"prompt": ["a", "b"]}, {"n": 2}, {"n_cmpl": 2}])
def test_several_answers_are_a_list_in_their_order(sent):
    asked = call(**sent)

    answers = complete_json(asked.answer, [Chunk(1, "y", 1), last(1), Chunk(0, "x", 1), last(0)])

    assert [(answer["index"], answer["content"]) for answer in answers] == [(0, "x"), (1, "y")]
    assert [answer["timings"]["predicted_n"] for answer in answers] == [1, 1]


def test_a_list_with_one_prompt_gives_a_list():
    assert len(complete_json(call(prompt=["a"]).answer, [last(0)])) == 1


def test_tokens_are_returned_where_they_are_asked_for():
    assert whole(last(0), return_tokens=True)["tokens"] == [5, 6]
    assert job(return_tokens=True).sampling.n_probs == 0
    assert job().sampling.n_probs == -1


def test_probabilities_are_those_of_the_model():
    shown = whole(last(0), n_probs=1)["completion_probabilities"]

    assert [one["id"] for one in shown] == [5, 6]
    assert shown[0]["logprob"] == -1.0
    assert len(shown[0]["top_logprobs"]) == 1
    assert job(n_probs=4).sampling.n_probs == job(logprobs=4).sampling.n_probs == 4
    assert job(n_probs=4, logprobs=2).sampling.n_probs == 4
    assert job(n_probs=0, logprobs=2).sampling.n_probs == -1


def test_probabilities_after_sampling_are_no_logarithms():
    shown = whole(last(0), n_probs=1, post_sampling_probs=True)["completion_probabilities"]

    assert shown[0]["prob"] == pytest.approx(math.exp(-1))
    assert shown[0]["top_probs"][0]["prob"] == pytest.approx(math.exp(-1))
    assert job(n_probs=1, post_sampling_probs=True).sampling.post_sampling_probs


def test_no_probabilities_without_being_asked():
    assert "completion_probabilities" not in whole(last(0), return_tokens=True)


def test_members_are_picked_by_name_and_path():
    fields = ["content", "generation_settings/n_predict", "timings/no", "nothing", "content/x"]

    answer = whole(last(0), n_predict=7, response_fields=fields)

    assert answer == {"content": "Hello", "generation_settings/n_predict": 7}


def test_no_names_pick_everything():
    assert "timings" in whole(last(0), response_fields=[])


# Streams.


def test_a_stream_has_pieces_and_then_the_answer_without_its_content():
    first, second, end = events(*HELLO, last(0))

    assert first == {
        "index": 0,
        "content": "Hel",
        "tokens": [5],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": 1,
        "tokens_evaluated": 2,
    }
    assert (second["content"], second["tokens_predicted"]) == ("lo", 2)
    assert (end["content"], end["tokens"], end["stop"], end["tokens_predicted"]) == ("", [], True, 2)
    assert end["generation_settings"]["stream"] is True


def test_text_in_a_task_s_last_chunk_is_sent_before_its_end():
    streamed = events(Chunk(0, "x", 1, Finish.LENGTH))

    assert [event["content"] for event in streamed] == ["x", ""]


def test_each_piece_has_its_tokens_probabilities():
    first, *_, end = events(*HELLO, last(0), n_probs=1)

    assert [one["id"] for one in first["completion_probabilities"]] == [5]
    assert "completion_probabilities" not in end


def test_tokens_that_came_together_are_events_of_their_own():
    merged = Chunk(0, "Hello", 2, tokens=(token(5, b"Hel"), token(6, b"lo")))

    *pieces, _ = events(merged, last(0), n_probs=1)

    assert [(one["content"], one["tokens"], one["tokens_predicted"]) for one in pieces] == [
        ("Hel", [5], 1), ("lo", [6], 2),
    ]  # fmt: skip
    assert [len(one["completion_probabilities"]) for one in pieces] == [1, 1]


def test_progress_comes_before_the_text_with_what_it_took():
    reading = [
        Chunk(0, "", 0, read_tokens=n, prompt_tokens=9, cached_tokens=1, prompt_ms=5.0 * n) for n in (1, 5, 9, 9)
    ]

    *told, piece, _ = events(*reading, HELLO[0], last(0), return_progress=True)

    assert [event["prompt_progress"] for event in told] == [
        {"total": 9, "cache": 1, "processed": 1, "time_ms": 5},
        {"total": 9, "cache": 1, "processed": 5, "time_ms": 25},
        {"total": 9, "cache": 1, "processed": 9, "time_ms": 45},
    ]
    assert [event["timings"]["prompt_n"] for event in told] == [0, 4, 8]
    assert [event["content"] for event in told] == ["", "", ""]
    assert (piece["content"], "prompt_progress" in piece) == ("Hel", False)


def test_progress_is_for_streams():
    assert job(return_progress=True, stream=True).tells_progress
    assert not job(return_progress=True).tells_progress


def test_each_piece_may_come_with_the_timings_so_far():
    timed = {"cached_tokens": 1, "prompt_ms": 10.0, "decode_ms": 20.0}
    pieces = [Chunk(0, "a", 1, tokens=(token(5, b"a"),), **timed), Chunk(0, "b", 1, tokens=(token(6, b"b"),), **timed)]

    first, second, end = events(*pieces, last(0), timings_per_token=True)

    assert (first["timings"]["predicted_n"], first["timings"]["predicted_per_second"]) == (1, 0.0)
    assert (second["timings"]["predicted_n"], second["timings"]["predicted_per_second"]) == (2, 50.0)
    assert (first["timings"]["cache_n"], end["timings"]["cache_n"]) == (1, 1)
    assert "timings" not in events(*pieces, last(0))[0]


def test_every_task_of_a_stream_has_its_end():
    streamed = events(
        chunk(1, token(5, b"b")), last(1), chunk(0, token(6, b"a")), last(0), prompt=["x", "y"], n_prompts=2
    )

    assert [(event["index"], event["content"], event["stop"]) for event in streamed] == [
        (1, "b", False), (1, "", True), (0, "a", False), (0, "", True),
    ]  # fmt: skip
    assert [event["prompt"] for event in streamed if event["stop"]] == ["y", "x"]


def test_picked_members_are_those_of_the_end():
    first, *_, end = events(*HELLO, last(0), response_fields=["stop_type"])

    assert first["content"] == "Hel"
    assert end == {"stop_type": "limit"}


# What a job is generated with.


def test_the_settings_have_every_member_that_llama_server_s_have():
    settings = whole(last(0))["generation_settings"]

    assert (settings["chat_format"], settings["speculative.types"]) == ("Content-only", "none")
    assert settings.keys() >= {
        "backend_sampling", "generation_prompt", "preserved_tokens", "reasoning_format", "reasoning_in_content",
    }  # fmt: skip


def test_the_settings_are_those_of_the_job():
    sent = {
        "temperature": 0.5, "top_k": 7, "seed": 42, "stop": ["a"], "samplers": ["top_k", "temperature"], "n_keep": 3,
        "grammar": 'root ::= "x"', "dry_sequence_breakers": ["\n"], "n_probs": 2, "lora": [{"id": 1, "scale": 0.5}],
    }  # fmt: skip

    settings = whole(last(0), **sent)["generation_settings"]

    assert {name: settings[name] for name in sent} == sent
    assert (settings["max_tokens"], settings["n_predict"]) == (-1, -1)


def test_a_random_seed_is_shown_as_llama_server_shows_it():
    assert whole(last(0))["generation_settings"]["seed"] == 4294967295


def test_what_is_banned_is_among_the_biases():
    settings = whole(last(0), ignore_eos=True, logit_bias=[[7, 1.5], ["ab", False]])["generation_settings"]

    banned = None  # JSON has no -inf
    assert settings["logit_bias"] == [
        {"bias": banned, "token": 257},
        {"bias": 1.5, "token": 7},
        {"bias": banned, "token": 97},
        {"bias": banned, "token": 98},
    ]
    assert whole(last(0))["generation_settings"]["logit_bias"] == []


@pytest.mark.parametrize("biases", [[[7, 1.5], [" a", False]], {"7": 1.5, " a": False}])
def test_biases_name_tokens_or_texts_in_either_form(biases):
    assert job(logit_bias=biases).sampling.logit_bias == ((7, 1.5), (" a", -math.inf))


# What is refused.


@pytest.mark.parametrize("biases", [[["a" * 257, 1]], [["a" * 256, 1]] * 9, [[263, 1]]])
def test_biases_that_the_model_cannot_count_are_refused_when_they_are_shown(biases):
    """Long texts, more than 2048 tokens, and an id that the vocabulary does not have."""
    with pytest.raises(Refused, match=r"^logit_bias: "):
        whole(last(0), logit_bias=biases)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_predict", -2),
        ("n_predict", "1"),
        ("n_probs", -1),
        ("logprobs", 101),
        ("n_probs", 101),
        ("n_probs", True),
        ("post_sampling_probs", True),
        ("n", 0),
        ("n_cmpl", 129),
        ("response_fields", "content"),
        ("response_fields", [1]),
        ("stop", [""]),
        ("return_tokens", 1),
        ("prompt", []),
        ("prompt", None),
        ("return_progress", 1),
        ("n_indent", -1),
        ("samplers", ["infill", "nope"]),
        ("json_schema", 5),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_name(name, value):
    with pytest.raises(Refused) as refused:
        call(**{name: value})

    assert str(refused.value.param).split("[")[0] == name


def test_two_numbers_of_answers_have_to_be_the_same():
    assert job(n=2, n_cmpl=2).n == 2
    with pytest.raises(Refused, match="n_cmpl"):
        call(n=2, n_cmpl=3)


@pytest.mark.parametrize("name", sorted(parse.UNSUPPORTED))
def test_what_is_not_supported_is_refused_by_name(name):
    with pytest.raises(NotSupported, match=name):
        call(**{name: 5})


def test_no_tokens_may_be_asked_for():
    assert job(n_predict=0).max_tokens == 0


def test_a_schema_is_a_grammar_and_stands_alone():
    assert "root" in job(json_schema={"type": "integer"}).sampling.grammar
    with pytest.raises(Refused, match="json_schema"):
        call(json_schema={}, grammar='root ::= "x"')


# Infill.


def test_a_hole_becomes_a_prompt():
    assert filling(ByteVocabulary(INFILL), prompt="c").job.prompts == (
        Tokens((PREFIX, *b"a", SUFFIX, *b"b", MIDDLE, *b"c")),
    )


def test_other_files_stand_before_it():
    prompt = filling(ByteVocabulary(INFILL), input_extra=[{"text": "T"}]).job.prompts[0]

    assert prompt.ids[: prompt.ids.index(PREFIX)][-1:] == tuple(b"T")


def test_a_model_without_the_tokens_does_not_offer_it():
    with pytest.raises(NotOffered):
        filling(ByteVocabulary())


@pytest.mark.parametrize(
    "extra",
    [{}, {"filename": "ok"}, {"filename": 123}, {"filename": 123, "text": "abc"}, {"filename": 123, "text": 456}],
)
def test_a_file_that_is_none_is_refused(extra):
    with pytest.raises(Refused) as refused:
        filling(ByteVocabulary(INFILL), input_extra=[extra])

    assert refused.value.param.startswith("input_extra")


@pytest.mark.parametrize("name", ["input_prefix", "input_suffix"])
def test_both_sides_of_a_hole_are_required(name):
    with pytest.raises(Refused) as refused:
        filling(ByteVocabulary(INFILL), **{name: None})

    assert refused.value.param == name
