"""Servers of the tiny model with its projector, and requests with images in every dialect."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from tests.serve.server import Server, Servers
from tests.serve.wire import Answer
from tests.support import faulty_images, gguf, projector

N_EMBD = 32
CONTEXT = 512
N_ROWS = projector.N_PATCHES
N_PREDICT = 8


@dataclass(frozen=True)
class Files:
    """The files of a model that takes images."""

    model: Path
    mmproj: Path
    gate: Path  # where slow images wait for a file

    @classmethod
    def write(cls, folder: Path) -> Files:
        return cls(
            gguf.write_llama(folder / "tiny.gguf", CONTEXT),
            projector.write_mlp(folder / "mmproj.gguf", N_EMBD),
            folder / "gate",
        )

    def start(self, servers: Servers, *command: str, **settings: Any) -> Server:
        """A server whose encoder has faults: see tests.support.faulty_images."""
        values: dict[str, Any] = {"model": self.model, "mmproj": self.mmproj, "ctx": CONTEXT, "slots": 4, "threads": 1}
        values |= {"encoder_threads": 1, "encoder_nice": 0, **faulty_images.environ(self.gate)}
        return servers.start(*command, **(values | settings))


def post(server: Server, body: dict[str, Any]) -> Answer:
    """Posts a chat over a connection of its own. Waits for the answer."""
    with server.connect() as connection:
        return connection.post(body)


def png(seed: int = 1, width: int = 56, height: int = 56) -> str:
    """A PNG of random pixels as base64."""
    picture = Pillow.frombytes("RGB", (width, height), projector.random_pixels(width, height, seed))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return b64encode(file.getvalue()).decode()


def chat(*images: str, text: str = "What is it?", **fields: Any) -> dict[str, Any]:
    """A body of /v1/chat/completions: some words, then the images."""
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in images]
    message = {"role": "user", "content": [{"type": "text", "text": text}, *parts]}
    return {"messages": [message], "max_tokens": N_PREDICT, "temperature": 0, **fields}


def completion(*images: str, text: str = "It is", **fields: Any) -> dict[str, Any]:
    """A body of text completions, with llama-server's form of images."""
    prompt = {"prompt_string": text + "<__media__>" * len(images), "multimodal_data": list(images)}
    return {"prompt": prompt, "max_tokens": N_PREDICT, "temperature": 0, **fields}


def native(*images: str, **fields: Any) -> dict[str, Any]:
    body = completion(*images, **fields)
    return body | {"n_predict": body.pop("max_tokens")}


def responses(*images: str, text: str = "What is it?", **fields: Any) -> dict[str, Any]:
    parts = [{"type": "input_image", "image_url": f"data:image/png;base64,{image}"} for image in images]
    content = [{"type": "input_text", "text": text}, *parts]
    return {
        "model": "tiny",
        "input": [{"role": "user", "content": content}],
        "max_output_tokens": N_PREDICT,
        "temperature": 0,
        **fields,
    }


def messages(*images: str, text: str = "What is it?", **fields: Any) -> dict[str, Any]:
    sources = [{"type": "base64", "media_type": "image/png", "data": image} for image in images]
    content = [{"type": "text", "text": text}, *({"type": "image", "source": source} for source in sources)]
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": N_PREDICT,
        "temperature": 0,
        **fields,
    }


@dataclass(frozen=True)
class Dialect:
    """One way to send an image and read the answer."""

    name: str
    path: str
    body: Callable[..., dict[str, Any]]
    text: Callable[[dict[str, Any]], str]
    delta: Callable[[dict[str, Any]], str]  # the text of one event of a stream
    n_prompt: Callable[[dict[str, Any]], int]


def _chat_delta(event: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _response_text(answer: dict[str, Any]) -> str:
    return "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])


DIALECTS = (
    Dialect(
        "chat",
        "/v1/chat/completions",
        chat,
        lambda answer: answer["choices"][0]["message"]["content"],
        _chat_delta,
        lambda answer: answer["usage"]["prompt_tokens"],
    ),
    Dialect(
        "completions",
        "/v1/completions",
        completion,
        lambda answer: answer["choices"][0]["text"],
        lambda event: "".join(choice["text"] for choice in event["choices"]),
        lambda answer: answer["usage"]["prompt_tokens"],
    ),
    Dialect(
        "responses",
        "/v1/responses",
        responses,
        _response_text,
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
        lambda answer: answer["usage"]["input_tokens"],
    ),
    Dialect(
        "messages",
        "/v1/messages",
        messages,
        lambda answer: "".join(block["text"] for block in answer["content"]),
        lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
        lambda answer: answer["usage"]["input_tokens"] + (answer["usage"].get("cache_read_input_tokens") or 0),
    ),
    Dialect(
        "llama-server",
        "/completion",
        native,
        lambda answer: answer["content"],
        lambda event: event.get("content", ""),
        lambda answer: answer["tokens_evaluated"],
    ),
)


def events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, without those that hold no JSON."""
    lines = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
