"""Embeddings: bodies to jobs, vectors to answers, in OpenAI's shape and in llama-server's own."""

import base64
import json
import struct
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import NotOffered, NotSupported, Refused
from corosrv.contracts.jobs import Chunk, Defaults, EmbedJob, Finish, ModelCard, Text, Tokens
from corosrv.dialects.generation.call import vectors_of
from corosrv.dialects.openai import embeddings
from corosrv.web.http import body_reader
from tests.support.vocabularies import ByteVocabulary

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
EMBEDS = frozenset(("embeddings",))
CARD = ModelCard("tiny", created=1, meta={"n_embd": 2, "pooling": "mean"}, capabilities=EMBEDS)
EACH_TOKEN = ModelCard("tiny", created=1, meta={"n_embd": 2, "pooling": "none"}, capabilities=EMBEDS)
VECTORS = [struct.pack("<2f", 0.5, -1.0), struct.pack("<2f", 2.0, 4.0)]


def job(card: ModelCard = CARD, **sent: Any) -> EmbedJob:
    fields = body_reader.decode(REQUEST, json.dumps({"input": "Hi", **sent}).encode(), embeddings.decoder)
    return embeddings.embed_job(fields, card, ByteVocabulary())


def native_job(card: ModelCard = CARD, **sent: Any) -> EmbedJob:
    fields = body_reader.decode(REQUEST, json.dumps(sent).encode(), embeddings.native_decoder)
    return embeddings.native_job(fields, card, ByteVocabulary())


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("Hi", (Text("Hi"),)),
        ([1, 2], (Tokens((1, 2)),)),
        ([1, "a", 2], (Tokens((1, 97, 2)),)),
        (["a", "b"], (Text("a"), Text("b"))),
        (["a", [1, 2]], (Text("a"), Tokens((1, 2)))),
        ([[1], [2, "a"]], (Tokens((1,)), Tokens((2, 97)))),
        ({"content": [{"type": "text", "text": "a"}]}, (Text("a"),)),
    ],
)
def test_an_input_is_one_or_a_list_of_texts_and_ids(sent, expected):
    assert job(input=sent).prompts == expected
    assert native_job(content=sent).prompts == expected
    assert native_job(input=sent).prompts == expected


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ("", "input"),
        ([], "input"),
        (None, "input"),
        (5, "input"),
        (["a", ""], "input[1]"),
        ([1.5], "input[0]"),
        ([None], "input[0]"),
        ([[]], "input[0]"),
        (["a"] * 2049, "input"),
        ({"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, "input.content[0]"),
    ],
)
def test_a_wrong_input_is_refused_with_its_place(sent, param):
    with pytest.raises(Refused) as refused:
        job(input=sent)

    assert refused.value.param == param


def test_llama_server_s_body_needs_either_name():
    with pytest.raises(Refused) as refused:
        native_job()

    assert (refused.value.param, refused.value.code) == ("content", "missing_required_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [("encoding_format", "hex"), ("encoding_format", 1), ("dimensions", 0), ("dimensions", 3), ("embd_normalize", -2)],
)
def test_a_wrong_parameter_is_refused_by_its_name(name, value):
    with pytest.raises(Refused) as refused:
        job(**{name: value})

    assert refused.value.param == name


def test_all_dimensions_may_be_asked_for():
    assert job(dimensions=2) == job()


def test_vectors_have_unit_length_unless_told_otherwise():
    assert job().normalize == 2
    assert job(embd_normalize=-1).normalize == -1
    assert native_job(content="x", embd_normalize=0).normalize == 0


def test_the_operator_says_how_vectors_are_normalised_where_a_request_does_not():
    card = replace(CARD, defaults=Defaults(normalize=-1))

    assert job(card).normalize == native_job(card, content="x").normalize == -1
    assert job(card, embd_normalize=0).normalize == 0


def test_a_model_without_vectors_does_not_offer_them():
    card = ModelCard("tiny", created=1, capabilities=frozenset(("completion",)))

    with pytest.raises(NotOffered):
        job(card)
    with pytest.raises(NotOffered):
        native_job(card, content="x")


def test_a_vector_for_each_token_is_llama_server_s_alone():
    assert not native_job(EACH_TOKEN, content="x").pooling
    assert native_job(content="x").pooling
    with pytest.raises(NotSupported, match="/embeddings"):
        job(EACH_TOKEN)


# Answers.


def test_vectors_come_in_the_order_of_the_inputs():
    chunks = [Chunk(i, "", 0, Finish.STOP, vector=VECTORS[i]) for i in (1, 0)]

    assert vectors_of(chunks) == VECTORS


def test_an_answer_lists_vectors_and_what_was_read():
    assert msgspec.to_builtins(embeddings.embeddings(VECTORS, (3, 4), CARD)) == {
        "object": "list",
        "model": "tiny",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
            {"object": "embedding", "index": 1, "embedding": [2.0, 4.0]},
        ],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_base64_holds_little_endian_floats():
    one = msgspec.to_builtins(embeddings.embeddings(VECTORS, (3, 4), CARD, in_base64=True))["data"][1]

    assert struct.unpack("<2f", base64.b64decode(one["embedding"], validate=True)) == (2.0, 4.0)
    assert one["encoding_format"] == "base64"


def test_llama_server_s_answer_has_a_list_of_vectors_for_each_input():
    assert msgspec.to_builtins(embeddings.native(VECTORS, (3, 4), pooled=True)) == [
        {"index": 0, "embedding": [[0.5, -1.0]]},
        {"index": 1, "embedding": [[2.0, 4.0]]},
    ]
    assert msgspec.to_builtins(embeddings.native([b"".join(VECTORS)], (2,), pooled=False)) == [
        {"index": 0, "embedding": [[0.5, -1.0], [2.0, 4.0]]}
    ]
