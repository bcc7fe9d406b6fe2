"""Reranking: bodies to jobs, scores to answers."""

import json
import struct
from typing import Any

import msgspec
import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import NotOffered, Refused
from corosrv.contracts.jobs import ModelCard, RerankJob
from corosrv.dialects.openai import rerank
from corosrv.web.http import body_reader

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
CARD = ModelCard("tiny", created=1, capabilities=frozenset(("rerank",)))
SCORES = [struct.pack("<f", score) for score in (-1.0, 0.5, 0.25, 0.5)]


def parsed(**sent: Any) -> rerank.RerankBody:
    return body_reader.decode(REQUEST, json.dumps({"query": "q", **sent}).encode(), rerank.decoder)


@pytest.mark.parametrize("name", ["documents", "texts"])
def test_documents_go_by_either_name(name):
    assert rerank.job(parsed(**{name: ["a", "b"]}), CARD) == RerankJob("q", ("a", "b"))


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": None}, "documents"),
        ({"documents": 123}, "documents"),
        ({"documents": [1, 2, 3]}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a"], "query": ""}, "query"),
        ({"documents": ["a"], "query": None}, "query"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
        ({"documents": ["a"], "texts": ["a"]}, "texts"),
    ],
)
def test_a_wrong_body_is_refused_with_its_place(sent, param):
    with pytest.raises(Refused) as refused:
        rerank.job(parsed(**sent), CARD)

    assert str(refused.value.param).split("[")[0] == param


def test_a_model_without_scores_does_not_offer_them():
    with pytest.raises(NotOffered):
        rerank.job(parsed(documents=["a"]), ModelCard("tiny", created=1))


@pytest.mark.parametrize(("top_n", "expected"), [(None, [1, 3, 2, 0]), (2, [1, 3]), (99, [1, 3, 2, 0])])
def test_the_best_come_first_and_equal_ones_as_they_were_sent(top_n, expected):
    assert [i for i, _ in rerank.best(SCORES, top_n)] == expected


def test_an_answer_lists_scores_and_what_was_read():
    assert msgspec.to_builtins(rerank.ranking(rerank.best(SCORES, 1), (3, 4), CARD)) == {
        "model": "tiny",
        "object": "list",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "results": [{"index": 1, "relevance_score": 0.5}],
    }


def test_texts_get_a_plain_list_and_themselves_if_they_want():
    ranked = rerank.best(SCORES, 1)

    assert msgspec.to_builtins(rerank.scored_texts(ranked, parsed(texts=["a", "b"]))) == [{"index": 1, "score": 0.5}]
    assert msgspec.to_builtins(rerank.scored_texts(ranked, parsed(texts=["a", "b"], return_text=True))) == [
        {"index": 1, "score": 0.5, "text": "b"}
    ]
