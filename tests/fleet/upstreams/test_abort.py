"""Ids by which requests can be aborted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corosrv.fleet.upstreams.aborter import tag

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
        (CHAT, {"n": 1}),
        ("/v1/completions?x=1", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": [1, 2, 3]}),
        ("/generate", {"text": "hi", "sampling_params": {"n": 1}}),
        ("/generate", {}),
    ],
)
def test_a_body_that_asks_for_one_answer_gets_an_id_and_keeps_all_else(path: str, body: dict[str, Any]):
    tagged = tag(path, b" \n" + json.dumps(body).encode(), 'a"b')

    assert tagged is not None
    assert json.loads(tagged) == {"rid": 'a"b', **body}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"rid": "mine"}),
        (CHAT, {"rid": None}),
        (CHAT, {"n": 2}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/completions", {"prompt": [[1], [2]]}),
        ("/generate", {"text": ["a", "b"]}),
        ("/generate", {"input_ids": [[1], [2]]}),
        ("/generate", {"text": "a", "sampling_params": {"n": 4}}),
        ("/generate", {"text": "a", "sampling_params": [{}, {}]}),
        ("/v1/embeddings", {"input": "a"}),
        ("/tokenize", {"content": "a"}),
    ],
)
def test_a_body_with_an_id_of_its_own_or_several_answers_stays_as_it_is(path: str, body: dict[str, Any]):
    assert tag(path, json.dumps(body).encode(), "id") is None
