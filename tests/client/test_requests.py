"""The requests of a rollout."""

import json

import pytest

from corosrv.base.errors import Misuse
from corosrv.client import rollout
from corosrv.client.http import CHAT, TEXT, RequestMaker

HI = [{"role": "user", "content": "hi"}]


def bodies(prompt, n=4, path=CHAT, is_split=False, **members):
    return [json.loads(request.body) for request in RequestMaker("r", n, path, members, is_split).requests(7, prompt)]


@pytest.mark.parametrize("prompt", ["hi", HI, {"messages": HI}])
def test_a_group_is_one_request_for_all_its_answers(prompt):
    assert bodies(prompt, max_tokens=5) == [{"messages": HI, "max_tokens": 5, "n": 4}]


@pytest.mark.parametrize("prompt", ["hi", [1, 2, 3]])
def test_texts_and_token_ids_are_prompts_of_text_completions(prompt):
    assert bodies(prompt, path=TEXT) == [{"prompt": prompt, "n": 4}]


def test_a_prompt_may_have_members_of_its_own():
    assert bodies({"messages": HI, "max_tokens": 9}, max_tokens=5)[0]["max_tokens"] == 9


def test_a_split_group_is_a_request_for_each_answer_with_a_seed_of_its_own():
    requests = RequestMaker("r", 3, CHAT, {"seed": 10}, is_split=True).requests(7, "hi")

    assert [json.loads(request.body)["seed"] for request in requests] == [10, 11, 12]
    assert all("n" not in json.loads(request.body) for request in requests)
    assert len({request.group for request in requests}) == 3


def test_a_request_names_its_group_and_is_answered_once():
    (request,) = RequestMaker("r", 2, CHAT, {}).requests(7, "hi")

    assert request.headers["X-Group-Id"] == request.headers["Idempotency-Key"] == request.group == "r-7"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"n": 0}, "n must"),
        ({"stream": True}, "stream"),
        ({"path": "/v1/messages"}, "path"),
        ({"concurrency": 0}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"url": "ftp://a"}, "url"),
        ({"url": "http://a:b"}, "url"),
        ({"url": "http://key@a"}, "api_key"),
        ({"prompts": "hi"}, "prompts"),
    ],
)
def test_a_wrong_argument_is_named(arguments, word):
    with pytest.raises(Misuse, match=word):
        rollout(**{"prompts": ["hi"], "url": "http://127.0.0.1:1", **arguments})
