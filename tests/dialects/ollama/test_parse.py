"""Ollama's bodies to jobs: messages, tools, formats, options, texts, and what is refused with its place."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Image, Job, Messages, ModelCard, MultimodalText, Text, Tokens
from corosrv.dialects.ollama import parse, schema
from corosrv.dialects.ollama.answers import Stopwatch
from corosrv.dialects.ollama.parse import AskedModel
from corosrv.formats.callformats.description import AnswerFormat
from corosrv.web.http import body_reader
from tests.support.vocabularies import INFILL, MIDDLE, ByteVocabulary

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
CARD = ModelCard("tiny", created=1, meta={"n_ctx": 1000}, capabilities=frozenset({"completion", "chat", "tools"}))
THINKER = ModelCard(
    "tiny", 1, capabilities=CARD.capabilities, answer_format=AnswerFormat(thought_tags=("<think>", "</think>"))
)
PIXEL = Image.of_pixels(1, 1, b"\0\0\0")
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
CALL = {"function": {"name": "look", "arguments": {"at": 1}}}


class PixelIntake:
    """Reads every base64 as one pixel, at most two in a request."""

    def expect(self, n_images: int, param: str) -> None:
        if n_images > 2:
            raise Refused(f"{param}: too many images", param)

    def from_base64(self, text: str, param: str) -> Image:
        try:
            base64.b64decode(text, validate=True)
        except ValueError:
            raise Refused(f"{param}: no base64", param) from None
        return PIXEL


def model_of(card: ModelCard = CARD, images: Any = None, **vocabulary: Any) -> AskedModel:
    return AskedModel(card, lambda: ByteVocabulary(longest=10**6, **vocabulary), "tiny:latest", images)


def decode(decoder: Any, sent: dict[str, Any]) -> Any:
    return body_reader.decode(REQUEST, json.dumps({"model": "tiny:latest", **sent}).encode(), decoder)


def chat(*messages: dict[str, Any], model: AskedModel | None = None, **sent: Any) -> Job:
    body = decode(schema.chat_decoder, {"messages": list(messages) or [user("Hi")], **sent})
    job = parse.chat(body, model or model_of(), Stopwatch()).job
    assert isinstance(job, Job)
    return job


def text(model: AskedModel | None = None, **sent: Any) -> Job:
    body = decode(schema.generate_decoder, {"prompt": "Hi", **sent})
    job = parse.text(body, model or model_of(), Stopwatch()).job
    assert isinstance(job, Job)
    return job


def user(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def prompt(job: Job) -> Messages:
    (found,) = job.prompts
    assert isinstance(found, Messages)
    return found


# Messages


def test_messages_become_turns():
    turns = prompt(chat({"role": "system", "content": "Be brief."}, user("Hi"))).messages

    assert turns == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})


def test_a_stream_is_the_default():
    body = decode(schema.chat_decoder, {"messages": [user("Hi")]})
    assert parse.chat(body, model_of(), Stopwatch()).stream
    body = decode(schema.chat_decoder, {"messages": [user("Hi")], "stream": False})
    assert not parse.chat(body, model_of(), Stopwatch()).stream


def test_a_last_message_of_the_assistant_is_continued():
    begun = prompt(chat(user("Hi"), {"role": "assistant", "content": "Well,"}))

    assert (begun.continue_final, begun.add_generation_prompt) == (True, False)


def test_results_answer_the_calls_of_their_names_in_order():
    other = {"function": {"name": "hear", "arguments": {}}}
    calls = {"role": "assistant", "content": "", "tool_calls": [CALL, other, CALL]}
    results = [
        {"role": "tool", "content": "b", "tool_name": "hear"},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "c", "name": "look"},
    ]

    turns = prompt(chat(user("Look."), calls, *results, tools=[TOOL])).messages

    assert [call["id"] for call in turns[1]["tool_calls"]] == ["call_1_0", "call_1_1", "call_1_2"]
    assert [(turn["tool_call_id"], turn["name"]) for turn in turns[2:]] == [
        ("call_1_1", "hear"), ("call_1_0", "look"), ("call_1_2", "look")
    ]  # fmt: skip


def test_ids_of_calls_are_kept_where_a_client_sends_them():
    calls = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "x1", "type": "function"}]}

    turns = prompt(chat(user("Look."), calls, {"role": "tool", "content": "a", "tool_call_id": "x1"})).messages

    assert turns[1]["tool_calls"][0]["id"] == turns[2]["tool_call_id"] == "x1"
    assert turns[2]["name"] == "look"


def test_a_result_whose_call_was_dropped_is_kept():
    assert prompt(chat({"role": "tool", "content": "a"}, user("So?"))).messages[0]["tool_call_id"] == "call_0"


def test_images_stand_before_the_text():
    turns = prompt(chat(user("What?", images=["aaaa"]), model=model_of(images=PixelIntake()))).messages

    assert turns[0]["content"] == (PIXEL, "What?")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([user("a", images=["aaaa"] * 3)], "messages: too many images"),
        ([user("a"), user("b", images=["!"])], r"messages\[1\].images\[0\]: no base64"),
        ([{"role": "assistant", "content": "a", "images": ["aaaa"]}], r"messages\[0\].images: images are read in"),
    ],
)
def test_images_that_cannot_be_read_are_named(messages: Any, words: str):
    with pytest.raises(Refused, match=words):
        chat(*messages, model=model_of(images=PixelIntake()))


def test_a_model_of_texts_refuses_images():
    with pytest.raises(NotSupported, match=r"messages\[0\].images: this model reads text only"):
        chat(user("a", images=["aaaa"]))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"messages": "Hi"}, "messages"),
        ({"messages": [7]}, r"messages\[0\]"),
        ({"messages": [user(7)]}, r"messages\[0\].content"),  # type: ignore[arg-type]
        ({"messages": [{"role": "wizard", "content": "a"}]}, r"messages\[0\].role"),
        ({"messages": [user("a", tool_calls=[CALL])]}, r"messages\[0\].tool_calls: only the assistant"),
        ({"messages": [user("a")] * 2049}, "messages"),
        ({"tools": [TOOL] * 1000}, "tools: at most 128, not 1000"),
        ({"tools": [TOOL, TOOL]}, r"tools\[1\].function.name"),
        ({"tools": [{"function": {}}]}, r"tools\[0\].function"),
        ({"tools": [{"function": {"name": "a", "parameters": {"type": "wrong"}}}]}, r"tools\[0\].function.parameters"),
        ({"format": "xml"}, 'format must be "json" or a JSON schema'),
        ({"format": {"type": 7}}, "format: the schema at #/type"),
        ({"format": 7}, "format"),
        ({"think": "loud"}, "think"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"top_p": 7}}, "options.top_p"),
        ({"options": {"stop": ""}}, "options.stop: a stop string must not be empty"),
        ({"options": []}, "options"),
        ({"options": {f"x{i}": 1 for i in range(300)}}, "options"),
    ],
)
def test_a_wrong_field_is_named(sent: dict[str, Any], words: str):
    with pytest.raises(Refused, match=words):
        chat(**sent)


def test_deep_json_is_refused():
    deep: Any = {}
    for _ in range(300):
        deep = {"properties": {"a": deep}}

    with pytest.raises(Refused):
        chat(format=deep)


@pytest.mark.parametrize(("sent", "ability"), [({"think": True}, "thinking"), ({"think": "low"}, "thinking")])
def test_what_a_model_cannot_is_said_in_ollamas_words(sent: dict[str, Any], ability: str):
    with pytest.raises(Refused, match=f'"tiny:latest" does not support {ability}'):
        chat(**sent)
    with pytest.raises(Refused, match=f'"tiny:latest" does not support {ability}'):
        text(**sent)


def test_a_model_without_tools_says_so():
    with pytest.raises(Refused, match='"tiny:latest" does not support tools'):
        chat(tools=[TOOL], model=model_of(ModelCard("tiny", 1, capabilities=frozenset({"completion", "chat"}))))


@pytest.mark.parametrize(
    ("think", "arguments"),
    [
        (None, {}),
        (False, {"enable_thinking": False}),
        (True, {"enable_thinking": True, "thinking": True}),
        ("low", {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}),
    ],
)
def test_a_template_is_told_how_much_to_think(think: Any, arguments: dict[str, Any]):
    assert prompt(chat(think=think, model=model_of(THINKER))).template_arguments == arguments


def test_the_oldest_turns_go_where_the_context_is_too_small():
    card = ModelCard("tiny", 1, meta={"n_ctx": 400}, capabilities=CARD.capabilities)
    system = {"role": "system", "content": "Be brief."}
    old = [user("a" * 100), {"role": "assistant", "content": "b" * 100}] * 5

    turns = prompt(chat(system, *old, user("So?"), model=model_of(card))).messages
    all_turns = prompt(chat(system, *old, user("So?"), model=model_of(card), truncate=False)).messages

    assert turns[0] == system
    assert turns[-1] == user("So?")
    assert 2 < len(turns) < len(all_turns) == 12


# Options, formats and times


def test_options_steer_the_sampling():
    options = {
        "num_predict": 7, "temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 3, "stop": ["x"],
        "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repeat_last_n": 9, "num_keep": 4,
        "num_ctx": 4096,
    }  # fmt: skip
    job = chat(options=options)

    sampling = job.sampling
    assert (job.max_tokens, job.stop, job.n_keep, job.model) == (7, ("x",), 4, "tiny")
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed) == (0, 5, 0.5, 0.1, 3)
    assert (sampling.repeat_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, 0.5, -0.5)
    assert sampling.repeat_last_n == 9


@pytest.mark.parametrize("number", [0, -1, -2])
def test_as_many_tokens_as_fit_have_several_numbers(number: int):
    assert chat(options={"num_predict": number}).max_tokens is None


def test_options_of_a_runner_are_ignored_and_named():
    body = decode(schema.chat_decoder, {"options": {"num_ctx": 4096, "num_gpu": None, "top_k": 5, "wrong": 1}})

    assert schema.ignored_options(body) == ["options.num_ctx", "options.wrong"]


def test_a_format_becomes_a_grammar():
    assert "number" in chat(format={"type": "number"}).sampling.grammar
    assert chat(format="json").sampling.grammar == text(format="json").sampling.grammar != ""
    assert not chat(format="").sampling.grammar
    assert text(format={"type": "number"}, raw=True).sampling.grammar_param == "format"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), ("", None), (0, 0), ("0", 0), (300, 300), ("5m", 300), ("1h30m", 5400), ("1.5s", 1.5), (0.5, 0.5),
        ("-1", math.inf), (-1, math.inf), ("-5m", math.inf), ("24h", 86400), ("500ms", 0.5),
    ],
)  # fmt: skip
def test_keep_alive_is_seconds_or_a_time(value: Any, seconds: float | None):
    assert schema.keep_seconds(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["soon", "5 m", "m", "1d", "5m soon", "1" * 40, "٣s", "nan"])
def test_a_time_that_is_none_is_refused(value: str):
    with pytest.raises(Refused, match="keep_alive must be"):
        schema.keep_seconds(value)


# Texts


def test_a_prompt_is_written_by_the_template():
    assert prompt(text(system="Be brief.")).messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    )


def test_a_raw_prompt_is_read_as_it_stands():
    assert text(raw=True).prompts == (Text("Hi"),)
    assert text(raw=True, images=["aaaa"], model=model_of(images=PixelIntake())).prompts == (
        MultimodalText((PIXEL, "Hi")),
    )


def test_a_model_without_a_template_reads_the_prompt_as_it_stands():
    card = ModelCard("tiny", 1, capabilities=frozenset({"completion"}))

    assert text(model_of(card), system="Be brief.").prompts == (Text("Be brief.\n\nHi"),)


def test_a_suffix_makes_a_gap():
    (found,) = text(model_of(infill=INFILL), suffix="!").prompts

    assert isinstance(found, Tokens)
    assert found.ids[-1] == MIDDLE
    with pytest.raises(Refused, match='"tiny:latest" does not support insert'):
        text(suffix="!")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"template": "{{ .Prompt }}"}, "template: a template in a request is not run here"),
        ({"context": [1, 2]}, "context: token ids are not continued here"),
        ({"raw": True, "system": "a"}, "raw: a raw prompt has no place for system"),
        ({"suffix": "a", "system": "a"}, "suffix: a gap is filled"),
        ({"raw": True, "think": True}, "think: thoughts are told apart only"),
        ({"prompt": 7}, "prompt"),
        ({"images": ["aaaa"]}, "images: this model reads text only"),
    ],
)
def test_a_wrong_field_of_a_text_is_named(sent: dict[str, Any], words: str):
    with pytest.raises(Refused, match=words):
        text(**sent)


def test_fields_that_ask_for_nothing_are_taken():
    assert text(template="", context=[], suffix="", system="", images=[], think=False, format="", logprobs=False)


@pytest.mark.parametrize(
    ("sent", "n_probs"),
    [({"logprobs": True, "top_logprobs": 3}, 3), ({"logprobs": True}, 0), ({"top_logprobs": 3}, -1)],
)
def test_tokens_are_told_where_they_are_asked_for(sent: dict[str, Any], n_probs: int):
    assert [made(**sent).sampling.n_probs for made in (chat, text)] == [n_probs, n_probs]


@pytest.mark.parametrize(
    ("decoder", "sent", "is_empty"),
    [
        (schema.chat_decoder, {}, True),
        (schema.chat_decoder, {"messages": []}, True),
        (schema.chat_decoder, {"messages": [user("")]}, False),
        (schema.generate_decoder, {}, True),
        (schema.generate_decoder, {"prompt": ""}, True),
        (schema.generate_decoder, {"suffix": "a"}, False),
    ],
)
def test_a_request_without_a_prompt_is_about_its_model(decoder: Any, sent: dict[str, Any], is_empty: bool):
    assert parse.is_empty(decode(decoder, sent)) is is_empty


def test_a_model_has_to_be_named():
    assert decode(schema.show_decoder, {"model": None, "name": "small"}).model_name == "small"
    with pytest.raises(Refused, match="model is required"):
        _ = decode(schema.show_decoder, {"model": ""}).model_name


# Vectors

EMBEDDER = ModelCard("tiny", 1, meta={"n_ctx": 8, "n_embd": 2}, capabilities=frozenset({"embeddings"}))


def vectors(**sent: Any) -> Any:
    return parse.several_job(decode(schema.embed_decoder, sent), model_of(EMBEDDER))


def test_texts_that_are_too_long_are_cut_unless_told_otherwise():
    assert vectors(input=["short", "a long text"]).prompts == (Text("short"), Tokens(tuple(b"a long t")))
    assert vectors(input="a long text", truncate=False).prompts == (Text("a long text"),)


def test_nothing_has_no_vectors():
    assert vectors(input=[]) is vectors(input="") is None


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({}, "input is required"),
        ({"input": ["a", ""]}, r"input\[1\] must not be empty"),
        ({"input": [1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": -1}, "dimensions"),
    ],
)
def test_wrong_texts_are_named(sent: dict[str, Any], words: str):
    with pytest.raises(Refused, match=words):
        vectors(**sent)


def test_a_model_without_vectors_says_so():
    with pytest.raises(Refused, match='"tiny:latest" does not support embeddings'):
        parse.single_job(decode(schema.embedding_decoder, {"prompt": "a"}), model_of())
