"""What is seen in a body before it goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corosrv.base.errors import InvalidJson, Refused
from corosrv.gateway.forwarding.peek import MAX_PROMPT, MAX_SESSION, MAX_TOOLS, Peeked, peek


def look(reads_prompt: bool = False, **body: Any) -> Peeked:
    return peek(json.dumps(body).encode(), reads_prompt=reads_prompt)


def prompt(**body: Any) -> bytes:
    return look(reads_prompt=True, **body).prompt


def test_the_model_and_the_priority_are_seen():
    assert look(model="m", priority=2, temperature=1) == Peeked("m", 2, "")


@pytest.mark.parametrize("body", [{"model": 5}, {"model": None}, {"model": ""}, {"model": ["m"]}, {}])
def test_a_model_of_a_wrong_type_is_for_the_upstream_to_refuse(body: dict[str, Any]):
    assert look(**body).model is None


@pytest.mark.parametrize("priority", [10, -1, True, "1", 1.5, None, 2**80])
def test_a_priority_of_another_scale_says_nothing_here(priority: object):
    assert look(priority=priority).priority is None


def test_a_session_is_what_the_cache_key_says_or_else_the_user():
    assert look(user="u", prompt_cache_key="k").session == "k"
    assert look(user="u", prompt_cache_key="").session == "u"
    assert look(user={"id": 1}).session == ""
    assert len(look(user="u" * 1000).session) == MAX_SESSION


@pytest.mark.parametrize("body", [b"[1]", b'"text"', b"7", b"null"])
def test_json_that_is_no_object_is_refused(body: bytes):
    with pytest.raises(Refused, match="must be a JSON object"):
        peek(body, reads_prompt=False)


@pytest.mark.parametrize("reads_prompt", [False, True])
@pytest.mark.parametrize("body", [b"", b"{", b'{"a":tru}', b"\xff", b'{"a":' + b"[" * 100_000, b'{"a":1}x'])
def test_what_is_no_json_is_refused(body: bytes, reads_prompt: bool):
    with pytest.raises(InvalidJson):
        peek(body, reads_prompt=reads_prompt)


def test_the_prompt_is_read_only_if_it_is_asked_for():
    assert look(messages=[{"role": "user", "content": "Hi"}]).prompt == b""


def test_a_conversation_is_read_in_order_and_instructions_come_first():
    messages = [{"content": "Hi", "role": "user"}, {"role": "assistant", "content": [{"type": "text", "text": "Oh"}]}]

    assert prompt(messages=messages, system="Be kind") == b"Be kind\0user\0Hi\0assistant\0Oh\0"
    assert prompt(input=messages, instructions="Be kind") == b"Be kind\0user\0Hi\0assistant\0Oh\0"


@pytest.mark.parametrize("name", ["prompt", "input", "text", "content"])
def test_a_plain_prompt_is_read(name: str):
    assert prompt(**{name: "Once"}) == b"Once\0"
    assert prompt(**{name: [5, 7]}) == b"5\x007\0"


def test_two_conversations_never_read_like_one():
    one = prompt(messages=[{"role": "user", "content": "ab"}])
    other = prompt(messages=[{"role": "user", "content": "a"}, {"role": "b", "content": ""}])

    assert one != other


def test_a_continued_conversation_begins_with_the_earlier_one():
    messages = [{"role": "user", "content": "Hi"}]

    assert prompt(messages=[*messages, {"role": "assistant", "content": "Oh"}]).startswith(prompt(messages=messages))


def test_only_the_beginning_is_kept():
    assert len(prompt(prompt="a" * 100_000)) == MAX_PROMPT
    assert len(prompt(tools=[{"name": "a" * 100_000}])) == MAX_TOOLS


def test_an_image_is_not_read():
    image = {"type": "image_url", "image_url": {"url": "data:" + "a" * 1000}}

    assert prompt(messages=[{"role": "user", "content": [image]}]) == b"user\0"
