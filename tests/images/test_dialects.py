"""Images in each dialect: read where the model takes them, and refused as before where it does not."""

import json
from dataclasses import replace
from typing import Any

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import InvalidImage, NotSupported, Refused
from corosrv.contracts.jobs import Image, MultimodalText, Text
from corosrv.contracts.settings import ImageSettings
from corosrv.dialects.anthropic import parse as anthropic_parse
from corosrv.dialects.anthropic import schema as anthropic_schema
from corosrv.dialects.generation.prompts import prompts
from corosrv.dialects.openai.chat import parse as chat_parse
from corosrv.dialects.openai.chat import schema as chat_schema
from corosrv.dialects.openai.responses import parse as response_parse
from corosrv.dialects.openai.responses import schema as response_schema
from corosrv.dialects.openai.responses.answer_types import ResponseObject
from corosrv.dialects.openai.responses.items import list_items
from corosrv.dialects.openai.responses.store import ResponseStore, Shelf, Stored
from corosrv.dialects.openai.responses.stored_images import read_images
from corosrv.images.decoding import ImageFormat, decode
from corosrv.images.reader import ImageReader
from corosrv.web.http import body_reader
from tests.images.decoders import DECODERS
from tests.images.pictures import BLUE, CARD, base64, data_url, plain
from tests.support.answers import empty_response
from tests.support.vocabularies import ByteVocabulary

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
RED_FILE, BLUE_FILE = plain(), plain("GIF", (3, 5), BLUE)
RED_URL, BLUE_URL = data_url(RED_FILE), data_url(BLUE_FILE, "image/gif")
RED_IMAGE = Image.of_pixels(*decode(RED_FILE, ImageFormat.PNG, 1000, "image"))
BLUE_IMAGE = Image.of_pixels(*decode(BLUE_FILE, ImageFormat.GIF, 1000, "image"))
BAD_URL = data_url(b"\x89PNG\r\n\x1a\n")
TEXT = {"type": "text", "text": "What is it?"}


def images(takes: bool = True):
    return ImageReader(ImageSettings(), DECODERS).intake() if takes else None


def messages(call: Any) -> tuple[dict[str, Any], ...]:
    return call.job.prompts[0].messages


def chat(*sent: Any, takes: bool = True) -> tuple[dict[str, Any], ...]:
    raw = json.dumps({"messages": sent}).encode()
    fields = body_reader.decode(REQUEST, raw, chat_schema.decoder)
    return messages(chat_parse.call(fields, CARD, ByteVocabulary, images(takes)))


def respond(*sent: Any, takes: bool = True, shelf: Shelf | None = None, **more: Any) -> tuple[dict[str, Any], ...]:
    fields = body_reader.decode(REQUEST, json.dumps({"input": sent, **more}).encode(), response_schema.decoder)
    shelf = shelf or ResponseStore(0).shelf("")
    return messages(response_parse.call(fields, CARD, shelf, ByteVocabulary, images(takes)))


def anthropic(*sent: Any, takes: bool = True, **more: Any) -> tuple[dict[str, Any], ...]:
    raw = json.dumps({"max_tokens": 9, "messages": sent, **more}).encode()
    fields = body_reader.decode(REQUEST, raw, anthropic_schema.decoder)
    return messages(anthropic_parse.call(fields, CARD, "req_1", images(takes)))


def image_url(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def input_image(url: Any, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **more}


def block(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": base64(data)}}


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


CHAT_IMAGE, INPUT_IMAGE, BLOCK = image_url({"url": RED_URL, "detail": "high"}), input_image(RED_URL), block(RED_FILE)
INPUT_TEXT = {"type": "input_text", "text": "What is it?"}


@pytest.mark.parametrize(
    ("ask", "content"),
    [
        (chat, (TEXT, CHAT_IMAGE, TEXT, TEXT, image_url(BLUE_URL))),
        (respond, (INPUT_TEXT, input_image(RED_URL, detail="low"), INPUT_TEXT, INPUT_TEXT, input_image(BLUE_URL))),
        (anthropic, (TEXT, BLOCK, TEXT, TEXT, {"type": "image", "source": {"type": "url", "url": BLUE_URL}})),
    ],
)
def test_a_message_carries_its_images_between_its_texts(ask, content):
    (turn,) = ask(said("user", *content))

    words = "What is it?"
    assert turn == {"role": "user", "content": (words, RED_IMAGE, f"{words}\n{words}", BLUE_IMAGE)}


@pytest.mark.parametrize(("ask", "content"), [(chat, TEXT), (respond, INPUT_TEXT), (anthropic, TEXT)])
def test_a_message_without_images_stays_a_string(ask, content):
    assert ask(said("user", content))[0]["content"] == "What is it?"


@pytest.mark.parametrize(
    ("ask", "content", "param", "words"),
    [
        (chat, CHAT_IMAGE, "messages[0].content[1]", "parts of type 'text' only, not 'image_url'"),
        (chat, image_url({"url": 5}), "messages[0].content[1]", "parts of type 'text' only"),
        (respond, INPUT_IMAGE, "input[0].content[1].type", "reads text only, not 'input_image'"),
        (respond, input_image({"url": RED_URL}), "input[0].content[1].type", "reads text only"),
        (anthropic, BLOCK, "messages[0].content[1]", "reads text only, no image"),
        (anthropic, {"type": "image", "source": {"type": "x"}}, "messages[0].content[1]", "reads text only"),
    ],
)
def test_a_model_without_images_refuses_them_as_ever(ask, content, param: str, words: str):
    text = INPUT_TEXT if ask is respond else TEXT
    with pytest.raises(NotSupported, match=words) as refused:
        ask(said("user", text, content), takes=False)
    assert (refused.value.param, refused.value.code) == (param, "unsupported_content")


@pytest.mark.parametrize(
    ("ask", "part", "words"),
    [
        (chat, {"type": "video_url", "video_url": {"url": "x"}}, "parts of type 'text' and 'image_url' only"),
        (respond, {"type": "input_audio"}, "this model reads text and images only, not 'input_audio'"),
    ],
)
def test_a_model_with_images_refuses_other_parts_by_what_it_reads(ask, part, words: str):
    with pytest.raises(NotSupported, match=words):
        ask(said("user", part))


USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [TEXT, BLOCK]}
DOCUMENT = {"type": "document", "source": {"type": "content", "content": [BLOCK]}}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": [INPUT_TEXT, INPUT_IMAGE]}
CHAT_CALL = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    ("ask", "sent", "param"),
    [
        (chat, [said("system", CHAT_IMAGE)], "messages[0].content[0]"),
        (chat, [said("user", TEXT), said("assistant", CHAT_IMAGE)], "messages[1].content[0]"),
        (chat, [CHAT_CALL, {**said("tool", CHAT_IMAGE), "tool_call_id": "c1"}], "messages[1].content[0]"),
        (respond, [said("system", INPUT_IMAGE)], "input[0].content[0]"),
        (respond, [said("assistant", INPUT_IMAGE)], "input[0].content[0]"),
        (anthropic, [said("system", BLOCK)], "messages[0].content[0]"),
        (anthropic, [said("assistant", BLOCK)], "messages[0].content[0]"),
        (anthropic, [said("user", DOCUMENT)], "messages[0].content[0].source.content[0]"),
    ],
)
def test_an_image_where_none_belongs_is_refused_by_its_place(ask, sent, param: str):
    with pytest.raises(NotSupported, match=r"images are read in messages of the user( and .*)? only") as refused:
        ask(*sent)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("ask", "content", "param"),
    [
        (chat, image_url(None), "messages[0].content[0].image_url"),
        (chat, image_url({"detail": "low"}), "messages[0].content[0].image_url"),
        (chat, {"type": "image_url"}, "messages[0].content[0].image_url"),
        (chat, image_url(BAD_URL), "messages[0].content[0].image_url"),
        (chat, image_url("file:///etc/passwd"), "messages[0].content[0].image_url"),
        (chat, image_url({"url": RED_URL, "detail": "ultra"}), "messages[0].content[0].image_url.detail"),
        (respond, input_image(RED_URL, detail=7), "input[0].content[0].detail"),
        (respond, input_image(None), "input[0].content[0].image_url"),
        (respond, input_image({"url": RED_URL}), "input[0].content[0].image_url"),
        (respond, input_image(BAD_URL), "input[0].content[0].image_url"),
        (respond, input_image(None, file_id="f1"), "input[0].content[0].file_id"),
        (anthropic, {"type": "image"}, "messages[0].content[0].source"),
        (anthropic, {"type": "image", "source": {"type": "x"}}, "messages[0].content[0].source.type"),
        (anthropic, {"type": "image", "source": {"type": "base64"}}, "messages[0].content[0].source.data"),
        (anthropic, {"type": "image", "source": {"type": "url"}}, "messages[0].content[0].source.url"),
        (anthropic, {"type": "image", "source": {"type": "file"}}, "messages[0].content[0].source.type"),
        (anthropic, block(b"<svg/>", "image/svg+xml"), "messages[0].content[0].source.data"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused_by_its_place(ask, content, param: str):
    with pytest.raises(Refused) as refused:
        ask(said("user", content))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("detail", "size"),
    [("low", (512, 256)), ("high", (1024, 512)), ("auto", (1024, 512)), ("original", (1024, 512)), (None, (1024, 512))],
)
@pytest.mark.parametrize("ask", [chat, respond])
def test_an_image_of_low_detail_is_made_smaller(ask, detail, size):
    url = data_url(plain("PNG", (1024, 512)))
    content = image_url({"url": url, "detail": detail}) if ask is chat else input_image(url, detail=detail)

    (turn,) = ask(said("user", content))

    (image,) = turn["content"]
    assert (image.width, image.height) == size


@pytest.mark.parametrize(
    ("ask", "sent"), [(respond, [CALL, OUTPUT]), (anthropic, [said("assistant", USE), said("user", RESULT)])]
)
def test_the_result_of_a_tool_carries_its_images(ask, sent):
    turn = ask(*sent)[1]

    assert (turn["role"], turn["name"], turn["content"]) == ("tool", "look", ("What is it?", RED_IMAGE))


def test_an_image_of_a_tool_that_failed_comes_behind_the_word_that_says_so():
    turn = anthropic(said("assistant", USE), said("user", RESULT | {"content": [BLOCK], "is_error": True}))[1]

    assert turn["content"] == ("Error: ", RED_IMAGE)


@pytest.mark.parametrize(
    ("ask", "sent", "param"),
    [
        (chat, [said("user", image_url(BAD_URL), *[CHAT_IMAGE] * 24)] * 40, "messages"),
        (respond, [said("user", input_image(BAD_URL), *[INPUT_IMAGE] * 24)] * 40, "input"),
        (respond, [CALL, OUTPUT | {"output": [input_image(BAD_URL), *[INPUT_IMAGE] * 999]}], "input"),
        (anthropic, [said("user", block(b"x"), *[BLOCK] * 24)] * 40, "messages"),
        (anthropic, [said("assistant", USE), said("user", RESULT | {"content": [BLOCK] * 1000})], "messages"),
    ],
)  # fmt: skip
def test_a_thousand_images_are_refused_before_the_first_is_read(ask, sent, param: str):
    with pytest.raises(InvalidImage, match="1000 images, and a request has 100 at most") as refused:
        ask(*sent)
    assert refused.value.param == param


def test_a_hundred_images_of_a_conversation_are_read():
    turns = chat(*[said("user", *[CHAT_IMAGE] * 25) for _ in range(4)])

    assert [turn["content"] for turn in turns] == [(RED_IMAGE,) * 25] * 4


def test_images_of_a_stored_conversation_count_with_those_that_follow():
    shelf, entry = ResponseStore(100_000).shelf(""), stored(*[RED_IMAGE] * 100)
    shelf.put(entry)

    with pytest.raises(InvalidImage, match="101 images, and a request has 100 at most"):
        respond(said("user", INPUT_IMAGE), shelf=shelf, previous_response_id=entry.response.id)


def test_a_thousand_images_of_a_prompt_are_refused_before_the_first_is_read():
    with pytest.raises(InvalidImage, match="1000 images, and a request has 100 at most"):
        multimodal("<__media__>" * 1000, ["?"] * 1000)


@pytest.mark.parametrize("ask", [chat, respond, anthropic])
def test_the_marker_of_multimodal_data_is_plain_text_in_a_conversation(ask):
    image, text = {chat: (CHAT_IMAGE, TEXT), respond: (INPUT_IMAGE, INPUT_TEXT), anthropic: (BLOCK, TEXT)}[ask]

    (turn,) = ask(said("user", image, text | {"text": "<__media__>"}))

    assert turn["content"] == (RED_IMAGE, "<__media__>")


def multimodal(text: Any, media: Any, takes: bool = True):
    value = {"prompt_string": text, "multimodal_data": media}
    return prompts(value, "prompt", 1, ByteVocabulary(), images(takes))[0]


def test_multimodal_data_stand_where_their_markers_are():
    prompt = multimodal("<__media__>Is <__media__> it?", [base64(RED_FILE), base64(BLUE_FILE)])

    assert prompt == MultimodalText((RED_IMAGE, "Is ", BLUE_IMAGE, " it?"))


@pytest.mark.parametrize("media", [None, []])
def test_a_text_of_no_images_is_a_text(media):
    assert multimodal("text", media) == Text("text")


def test_a_marker_without_multimodal_data_is_text():
    assert prompts({"prompt_string": "<__media__>"}, "prompt", 1, ByteVocabulary(), images()) == (Text("<__media__>"),)


@pytest.mark.parametrize(
    ("text", "media", "param"),
    [
        ("no marker", [base64(RED_FILE)], "prompt.multimodal_data"),
        ("<__media__><__media__>", [base64(RED_FILE)], "prompt.multimodal_data"),
        ("<__media__>", base64(RED_FILE), "prompt.multimodal_data"),
        ("<__media__>", [5], "prompt.multimodal_data"),
        ("no marker", {}, "prompt.multimodal_data"),
        ("no marker", "", "prompt.multimodal_data"),
        ("no marker", False, "prompt.multimodal_data"),
        ("<__media__>", ["?"], "prompt.multimodal_data[0]"),
        (None, [base64(RED_FILE)], "prompt.prompt_string"),
    ],
)
def test_multimodal_data_that_do_not_fit_are_refused(text, media, param: str):
    with pytest.raises(Refused) as refused:
        multimodal(text, media)
    assert refused.value.param == param


def test_multimodal_data_are_refused_by_a_model_without_images_as_ever():
    with pytest.raises(NotSupported, match="multimodal_data: this model reads text only"):
        multimodal("<__media__>", [base64(RED_FILE)], takes=False)


def stored(*content: str | Image) -> Stored:
    response: ResponseObject = empty_response("resp_1")
    return Stored(response, ({"role": "user", "content": content}, {"role": "assistant", "content": "Red."}))


def test_a_stored_response_keeps_the_images_of_its_conversation():
    shelf, entry = ResponseStore(100_000).shelf(""), stored("a", RED_IMAGE, "b", BLUE_IMAGE)
    shelf.put(entry)

    turns = respond(said("user", INPUT_TEXT), shelf=shelf, previous_response_id=entry.response.id)

    assert turns[:2] == entry.turns


def test_stored_files_are_decoded_again_each_once():
    file = plain("PNG", (20, 20))
    large = replace(Image.of_pixels(*decode(file, ImageFormat.PNG, 400, "image")), file=file)
    shelf, entry = ResponseStore(100_000).shelf(""), stored(large, "a", large)
    shelf.put(entry)
    limits = ImageReader(ImageSettings(image_total_pixels=400), DECODERS)

    (turn, _) = read_images(shelf.get(entry.response.id).turns, limits.intake(), "previous_response_id")

    assert turn["content"] == (large, "a", large)


def test_a_stored_conversation_with_images_is_refused_by_a_model_without():
    shelf, entry = ResponseStore(100_000).shelf(""), stored(RED_IMAGE)
    shelf.put(entry)

    with pytest.raises(NotSupported, match="previous_response_id: this model reads text only") as refused:
        respond(said("user", INPUT_TEXT), shelf=shelf, previous_response_id=entry.response.id, takes=False)

    assert refused.value.param == "previous_response_id"


def test_the_pixels_of_stored_images_count_towards_the_shelfs_room():
    large = Image.of_pixels(100, 100, bytes(30_000))
    shelf, entry = ResponseStore(30_000).shelf(""), stored(large)

    shelf.put(entry)

    with pytest.raises(Refused, match="no response"):
        shelf.get(entry.response.id)


def test_images_of_a_conversations_items_are_read_with_it_and_refused_where_the_model_reads_none():
    shelf = ResponseStore(100_000).shelf("")
    image = {"role": "user", "content": [{"type": "input_image", "image_url": RED_URL}]}
    id = shelf.begin({}, list_items([image], shelf)).id

    turn, *_ = respond({"role": "user", "content": "What is it?"}, shelf=shelf, conversation=id)

    assert turn["content"] == (RED_IMAGE,)
    with pytest.raises(NotSupported) as refused:
        respond({"role": "user", "content": "What is it?"}, shelf=shelf, conversation=id, takes=False)
    assert refused.value.param == "conversation[0].content[0].type"
