"""Handlers that answer piece by piece: corosrv serve deploy/app/streaming.py:app

curl -N http://127.0.0.1:8080/v2/models/spell/generate_stream -d '{"text_input": "one word at a time"}'
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from corosrv.worker import App, Context, ModelInferRequest, TensorSpec

app = App("streaming")

TEXT = TensorSpec("text_input", "BYTES", [1])
PIECE = TensorSpec("text_output", "BYTES", [1])
PAUSE = 0.05  # seconds between two pieces


@app.model("spell", inputs=[TEXT], outputs=[PIECE], concurrency=4)
def spell(request: ModelInferRequest, context: Context) -> Iterator[dict[str, Any]]:
    """Says a text word by word. Each yield is one event of the stream; a client that leaves ends it."""
    (text,) = request["text_input"].data
    for number, word in enumerate(text.decode().split()):
        if number:
            context.sleep(PAUSE)
        yield {"text_output": [f" {word}" if number else word]}


@app.model(
    "ticker",
    inputs=[TensorSpec("count", "INT32", [1])],
    outputs=[TensorSpec("tick", "INT32", [1])],
    concurrency=1000,
)
async def ticker(request: ModelInferRequest, context: Context) -> AsyncIterator[dict[str, Any]]:
    """Counts up; a thousand calls share one event loop."""
    (count,) = request["count"].data
    for tick in range(count):
        yield {"tick": [tick]}
        await asyncio.sleep(PAUSE)
