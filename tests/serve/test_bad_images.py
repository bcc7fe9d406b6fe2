"""Images that no server should take, in every dialect: each is refused with 400, in words, by its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.images.pictures import base64, plain, png
from tests.serve.image_server import DIALECTS, Files
from tests.serve.server import Server, servers
from tests.serve.wire import Answer

PNG = plain("PNG", (56, 56))
BOMB = png(10_000, 10_000, 0, 1, (b"\0" + bytes(1250)) * 10_000)
BAD = {
    "truncated": (PNG[:60], "the PNG is truncated or damaged"),
    "cut in its header": (PNG[:20], "the PNG is truncated: it ends in its header"),
    "a bomb": (BOMB, "the image has 10000 x 10000 pixels"),
    "a side too long": (plain("PNG", (40_000, 1)), "the image is 40000 x 1, and a side has 32768 at most"),
    "no width": (png(0, 5, 2, 8, b""), "the image has no pixels: it is 0 x 5"),
    "no height": (png(5, 0, 2, 8, b""), "the image has no pixels: it is 5 x 0"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG is not read here: send PNG, JPEG, WebP or GIF"),
    "PDF": (b"%PDF-1.7", "PDF is not read here"),
    "no image": (b"whatever", "a file of an unknown kind is not read here"),
    "empty": (b"", "the image is empty"),
}


def infer(*images: str) -> dict[str, Any]:
    return {"inputs": [bytes_input("text_input", "It is" + "<__media__>" * len(images)), bytes_input("image", *images)]}


def bytes_input(name: str, *data: str) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": list(data)}


def generate(*images: str) -> dict[str, Any]:
    return {"text_input": "It is" + "<__media__>" * len(images), "image": list(images), "max_tokens": 2}


@dataclass(frozen=True)
class Way:
    """One way to send images as base64, and where the body has the first of them."""

    path: str
    body: Callable[..., dict[str, Any]]
    place: str
    all_places: str


PLACES = {
    "chat": ("messages[0].content[1].image_url", "messages"),
    "completions": ("prompt.multimodal_data[0]", "prompt.multimodal_data"),
    "responses": ("input[0].content[1].image_url", "input"),
    "messages": ("messages[0].content[1].source.data", "messages"),
    "llama-server": ("prompt.multimodal_data[0]", "prompt.multimodal_data"),
}
WAYS = {dialect.name: Way(dialect.path, dialect.body, *PLACES[dialect.name]) for dialect in DIALECTS} | {
    "KServe infer": Way("/v2/models/tiny/infer", infer, "image[0]", "image"),
    "KServe generate": Way("/v2/models/tiny/generate", generate, "image[0]", "image"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return Files.write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory, cache) -> Iterator[Server]:
    with servers(tmp_path_factory.mktemp("images"), cache) as started:
        yield files.start(started, image_hosts="images.example")


@pytest.fixture(scope="module")
def text_only(files, tmp_path_factory, cache) -> Iterator[Server]:
    with servers(tmp_path_factory.mktemp("texts"), cache) as started:
        yield files.start(started, mmproj="")


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def way(request) -> Way:
    return request.param


def post(server: Server, body: dict[str, Any], path: str) -> Answer:
    with server.connect() as connection:
        return connection.post(body, path)


def words(answer: Answer) -> str:
    """The error's message, in each dialect's own form."""
    error = answer.json["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize(("data", "fault"), BAD.values(), ids=BAD)
def test_a_bad_image_is_refused_in_words_by_its_place(server: Server, way: Way, data: bytes, fault: str):
    answer = post(server, way.body(base64(data)), way.path)

    assert answer.status == 400, answer.body
    assert words(answer).startswith(f"{way.place}: {fault}")


def test_a_bad_image_behind_a_good_one_is_told_from_it(server: Server, way: Way):
    answer = post(server, way.body(base64(PNG), base64(PNG[:60])), way.path)

    assert answer.status == 400, answer.body
    assert words(answer).startswith(way.place.replace("[1]", "[2]").replace("a[0]", "a[1]").replace("e[0]", "e[1]"))


def test_a_thousand_images_are_refused_before_one_is_read(server: Server, way: Way):
    answer = post(server, way.body(*[base64(b"no image")] * 1000), way.path)

    assert answer.status == 400, answer.body
    assert words(answer) == f"{way.all_places}: 1000 images, and a request has 100 at most"


def test_a_model_without_a_projector_takes_no_images(text_only: Server, way: Way):
    answer = post(text_only, way.body(base64(PNG)), way.path)

    assert answer.status == 400, answer.body
    assert any(fault in words(answer) for fault in ("text only", "'text' only", "input of this model")), answer.body


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/"]
)
def test_a_url_in_place_of_base64_leads_nowhere(server: Server, way: Way, url: str):
    by_url = {
        "/v1/chat/completions": {"type": "image_url", "image_url": {"url": url}},
        "/v1/responses": {"type": "input_image", "image_url": url},
        "/v1/messages": {"type": "image", "source": {"type": "url", "url": url}},
    }
    body = way.body(url)
    if way.path in by_url:
        body[way.all_places][0]["content"][1] = by_url[way.path]

    answer = post(server, body, way.path)

    assert answer.status == 400, answer.body
    fault = "none of the hosts" if url.startswith("http") else "an image's URL is a data URL"
    assert (fault if way.path in by_url else "the image is not base64") in words(answer)


CHAT_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64(PNG)}"}}
INPUT_IMAGE = {"type": "input_image", "image_url": CHAT_IMAGE["image_url"]["url"]}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64(PNG)}}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALL = {"role": "assistant", "tool_calls": [CALLED]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": [CHAT_IMAGE]}
USER = {"role": "user", "content": "Look."}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": [CHAT_IMAGE]}, USER]}),
        ("/v1/chat/completions", {"messages": [{"role": "developer", "content": [CHAT_IMAGE]}, USER]}),
        ("/v1/chat/completions", {"messages": [USER, {"role": "assistant", "content": [CHAT_IMAGE]}]}),
        ("/v1/chat/completions", {"messages": [USER, CALL, RESULT]}),
        ("/v1/responses", {"input": [{"role": "system", "content": [INPUT_IMAGE]}]}),
        ("/v1/responses", {"input": [{"role": "developer", "content": [INPUT_IMAGE]}]}),
        ("/v1/responses", {"input": [{"role": "assistant", "content": [INPUT_IMAGE]}]}),
        ("/v1/messages", {"max_tokens": 2, "system": [BLOCK], "messages": [USER]}),
        ("/v1/messages", {"max_tokens": 2, "messages": [USER, {"role": "assistant", "content": [BLOCK]}]}),
    ],
    ids=["chat, system", "chat, developer", "chat, assistant", "chat, tool", "responses, system",
         "responses, developer", "responses, assistant", "messages, system", "messages, assistant"],
)  # fmt: skip
def test_an_image_in_a_message_that_takes_none_is_refused(server: Server, path: str, body: dict[str, Any]):
    answer = post(server, {"model": "tiny", **body}, path)

    assert answer.status == 400, answer.body
    assert "image" in words(answer)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/responses",
            {
                "input": [
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": [INPUT_IMAGE]},
                ]
            },
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 2,
                "messages": [
                    USER,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [BLOCK]}]},
                ],
            },
        ),
    ],
    ids=["responses", "messages"],
)
def test_a_bad_image_in_the_result_of_a_tool_is_refused_by_its_place(server: Server, path: str, body: dict[str, Any]):
    good = post(server, {"model": "tiny", **body}, path)
    item = body["input"][1]["output"][0] if "input" in body else body["messages"][2]["content"][0]["content"][0]
    if "input" in body:
        body["input"][1]["output"][0] = item | {"image_url": "data:image/png;base64," + base64(PNG[:60])}
    else:
        source = item["source"] | {"data": base64(PNG[:60])}
        body["messages"][2]["content"][0]["content"][0] = item | {"source": source}

    bad = post(server, {"model": "tiny", **body}, path)

    assert good.status == 200, good.body
    assert bad.status == 400, bad.body
    assert "the PNG is truncated or damaged" in words(bad)
