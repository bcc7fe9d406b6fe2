"""Answers as their clients read them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from corosrv.generation.call import Answer
from corosrv.jobs import Chunk


def complete_json(answer: Answer, chunks: list[Chunk]) -> Any:
    """Returns the answer that is not streamed, decoded from its JSON."""
    return json.loads(msgspec.json.encode(answer.complete(chunks)))
