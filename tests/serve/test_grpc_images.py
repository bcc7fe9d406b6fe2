"""Images in calls over gRPC, of the language model and of an application's handlers, with a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from PIL import Image as Pillow

from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import SIZES, Stub, infer_request, status, typed_request
from tests.images.pictures import base64, encoded, plain, png
from tests.serve.image_server import N_ROWS, Files
from tests.serve.server import Server, servers
from tests.serve.test_grpc import grpc_port

APP = str(Path(__file__).parent / "looking_app.py") + ":app"
PNG = plain("PNG", (56, 40))
BOMB = png(10_000, 10_000, 0, 1, (b"\0" + bytes(1250)) * 10_000)
TEXT = Tensor("text_input", "BYTES", [1], ["It is <__media__>"])
GREEDY = {"max_tokens": 4, "temperature": 0.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    files = Files.write(tmp_path_factory.mktemp("models"))
    with servers(tmp_path_factory.mktemp("grpc"), cache) as started:
        yield files.start(started, worker_app=APP, grpc_port=0)


@pytest.fixture
def talk(server: Server) -> Callable[[Callable[[Stub], Awaitable[Any]]], Any]:
    """Runs a scenario on a channel to the server's gRPC port."""

    async def run(scenario: Callable[[Stub], Awaitable[Any]]) -> Any:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port(server)}", options=SIZES) as channel:
            return await asyncio.wait_for(scenario(Stub(channel)), 60)

    return lambda scenario: asyncio.run(run(scenario))


def image(*files: bytes) -> Tensor:
    return Tensor("image", "BYTES", [len(files)], [base64(file) for file in files])


def outputs(answer: Any) -> dict[str, list[Any]]:
    """The outputs of an answer with raw contents."""
    contents = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {output.name: Tensor(output.name, output.datatype, output.shape, raw=raw).data for output, raw in contents}


def bytes_input(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}


def file_input(file: bytes) -> Tensor:
    """The input of a handler that takes a file as it is."""
    return Tensor("image", "BYTES", [1], [file])


def test_an_image_in_a_call_over_grpc_is_answered_as_over_rest(server: Server, talk):
    answer = outputs(talk(lambda stub: stub.infer(infer_request("tiny", TEXT, image(PNG), parameters=GREEDY))))
    typed = talk(lambda stub: stub.infer(typed_request("tiny", TEXT, image(PNG), parameters=GREEDY)))

    with server.connect() as connection:
        inputs = [bytes_input("text_input", "It is <__media__>"), bytes_input("image", base64(PNG))]
        rest = connection.post({"inputs": inputs, "parameters": GREEDY}, "/v2/models/tiny/infer").json
    expected = {output["name"]: output["data"] for output in rest["outputs"]}
    assert answer["num_input_tokens"][0] > N_ROWS
    assert answer | {"text_output": [answer["text_output"][0].decode()], "finish_reason": ["length"]} == expected
    assert [output.contents.bytes_contents[0] for output in typed.outputs[:1]] == answer["text_output"]


def test_an_image_in_a_stream_over_grpc_is_answered(talk):
    async def stream(stub: Stub) -> list[Any]:
        call = stub.stream()
        await call.write(infer_request("tiny", TEXT, image(PNG), parameters=GREEDY))
        await call.done_writing()
        return [answer async for answer in call]

    streamed = talk(stream)
    whole = outputs(talk(lambda stub: stub.infer(infer_request("tiny", TEXT, image(PNG), parameters=GREEDY))))

    assert [answer.error_message for answer in streamed] == [""] * len(streamed)
    texts = [outputs(answer.infer_response).get("text_output", [b""])[0] for answer in streamed]
    assert b"".join(texts) == whole["text_output"][0]


def test_a_large_image_over_grpc_is_answered(talk):
    large = encoded(Pillow.effect_noise((1500, 1000), 90))  # more than a mebibyte, which travels in a memory file

    answer = outputs(talk(lambda stub: stub.infer(infer_request("tiny", TEXT, image(large), parameters=GREEDY))))

    assert len(large) > 1 << 20
    assert answer["num_input_tokens"][0] > N_ROWS


BAD = [
    (image(PNG[:50]), "image[0]: the PNG is truncated or damaged"),
    (image(BOMB), "image[0]: the image has 10000 x 10000 pixels, and 25165824 in all are allowed"),
    (image(PNG, PNG), "image: 2 images, and the text has <__media__> 1 times"),
    (image(b"<svg xmlns='x'/>"), "image[0]: SVG is not read here: send PNG, JPEG, WebP or GIF"),
    (Tensor("image", "BYTES", [1], [b"\xff\xfe"]), "tensor 'image' is not base64"),
    (Tensor("image", "INT32", [1], [3]), "tensor 'image' has the datatype INT32, where the model takes BYTES"),
]


@pytest.mark.parametrize(("tensor", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_a_bad_image_over_grpc_is_an_invalid_argument(talk, tensor: Tensor, words: str):
    code, details, _ = talk(lambda stub: status(stub.infer(infer_request("tiny", TEXT, tensor))))

    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, words)


def test_a_handler_gets_the_file_of_an_image_as_it_was_sent(talk):
    answer = outputs(talk(lambda stub: stub.infer(infer_request("measure", file_input(PNG)))))

    assert answer == {"size": [56, 40]}


def test_a_handler_asks_the_language_model_about_an_image(talk):
    answer = outputs(talk(lambda stub: stub.infer(infer_request("look", file_input(PNG)))))
    asked = outputs(talk(lambda stub: stub.infer(infer_request("tiny", TEXT, image(PNG), parameters=GREEDY))))

    assert answer == {"text": asked["text_output"], "n_tokens": asked["num_input_tokens"]}


def test_a_handler_that_asks_about_a_bad_image_fails_by_its_words(talk):
    code, details, _ = talk(lambda stub: status(stub.infer(infer_request("look", file_input(PNG[:50])))))

    assert code is not grpc.StatusCode.OK
    assert "image[0]: the PNG is truncated or damaged" in details
