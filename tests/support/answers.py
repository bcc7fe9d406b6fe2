"""Answers as their clients read them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from corosrv.contracts.jobs import Chunk
from corosrv.dialects.generation.call import Answer
from corosrv.dialects.openai.responses import schema
from corosrv.dialects.openai.responses.answer_types import ResponseObject


def complete_json(answer: Answer, chunks: list[Chunk]) -> Any:
    """Returns the answer that is not streamed, decoded from its JSON."""
    return as_json(answer.complete(chunks))


def as_json(value: Any) -> Any:
    """Returns a value decoded from its JSON."""
    return json.loads(msgspec.json.encode(value))


def sent(stream: bytes) -> list[dict[str, Any]]:
    """Returns the events of a stream, each by its own name; a comment before them is left out."""
    events = []
    for block in stream.decode().removeprefix(":\n\n").split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def empty_response(id: str) -> ResponseObject:
    """Makes a response without output."""
    return ResponseObject(
        id=id,
        object="response",
        created_at=1,
        completed_at=2,
        status="completed",
        error=None,
        incomplete_details=None,
        output=[],
        usage=None,
        model="tiny",
        background=False,
        frequency_penalty=0.0,
        instructions=None,
        max_output_tokens=None,
        max_tool_calls=None,
        metadata={},
        parallel_tool_calls=True,
        presence_penalty=0.0,
        previous_response_id=None,
        prompt_cache_key=None,
        reasoning=schema.ReasoningOptions(),
        safety_identifier=None,
        service_tier="default",
        store=True,
        temperature=0.8,
        text=schema.TextOptions(schema.TextFormat("text")),
        tool_choice="auto",
        tools=[],
        top_logprobs=0,
        top_p=0.95,
        truncation="disabled",
    )
