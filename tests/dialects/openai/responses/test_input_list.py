"""The input of a stored response, as it is listed."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.datastructures import MultiDict

from corosrv.base.errors import NotSupported, Refused
from corosrv.dialects.openai.responses.items import list_items, page, read_include, without_urls
from corosrv.dialects.openai.responses.store import Shelf

ITEMS = [{"id": f"msg_{i}"} for i in range(25)]


def ids(**query: str) -> list[str]:
    return [item["id"] for item in page(ITEMS, query).data]


def test_a_text_is_listed_as_a_message_of_the_user():
    (item,) = list_items("hi", Shelf(1000))

    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }


def test_items_keep_what_was_sent_but_urls_of_images():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
    sent: list[dict[str, Any]] = [
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": "Red.", "id": "msg_7"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [image]},
    ]

    listed = list(map(without_urls, list_items(sent, Shelf(1000))))

    assert listed[0]["content"] == [{"type": "input_image", "detail": "low"}]
    assert (listed[1]["id"], listed[1]["content"]) == ("msg_7", [{"type": "output_text", "text": "Red."}])
    assert listed[2]["arguments"] == "{}"
    assert listed[3]["output"] == [{"type": "input_image", "detail": "low"}]
    assert len({item["id"] for item in listed}) == 4


def test_pages_follow_each_other_from_the_newest_on():
    first = page(ITEMS, {})

    assert [first.first_id, first.last_id, first.has_more] == ["msg_24", "msg_5", True]
    assert ids(after="msg_5") == ["msg_4", "msg_3", "msg_2", "msg_1", "msg_0"]
    assert ids(order="asc", limit="2", after="msg_0") == ["msg_1", "msg_2"]
    assert page(ITEMS, {"after": "msg_0"}).has_more is False


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": "0"}, "limit"), ({"limit": "x"}, "limit"), ({"order": "up"}, "order"), ({"after": "a"}, "after")],
)
def test_a_query_that_cannot_be_is_refused_by_name(query: dict[str, str], param: str):
    with pytest.raises(Refused) as refused:
        page(ITEMS, query)

    assert refused.value.param == param


@pytest.mark.parametrize("name", ["include", "include[]"])
def test_what_cannot_be_included_is_refused_by_name(name: str):
    nothing, urls = "reasoning.encrypted_content", "message.input_image.image_url"

    assert read_include(MultiDict([(name, nothing)])) == {nothing}
    assert read_include(MultiDict([(name, urls)]), urls) == {urls}
    with pytest.raises(NotSupported) as refused:
        read_include(MultiDict([(name, nothing), (name, urls)]))
    assert refused.value.param == "include"


@pytest.mark.parametrize("id", [7, {"a": 1}, "x" * 513])
def test_an_id_that_is_none_is_refused(id: Any):
    with pytest.raises(Refused) as refused:
        list_items([{"role": "user", "content": "a"}, {"role": "user", "content": "b", "id": id}], Shelf(1000))

    assert refused.value.param == "input[1].id"
