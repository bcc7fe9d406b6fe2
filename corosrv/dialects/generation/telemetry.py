"""Tells how far a job is in the events of its stream, as llama-server does for clients that ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corosrv.contracts.jobs import Chunk
from corosrv.dialects.generation.answer_options import AnswerOptions
from corosrv.dialects.generation.answer_types import PromptProgress
from corosrv.dialects.generation.tally import Tally


class Telemetry:
    """Makes the members that tell in one stream's events how far its job is."""

    __slots__ = ("_has_progress", "_has_timings", "_n_read", "_tallies", "is_wanted")

    def __init__(self, n_tasks: int, options: AnswerOptions) -> None:
        self._has_timings = options.token_timings
        self._has_progress = options.prompt_progress
        self.is_wanted = self._has_timings or self._has_progress
        self._tallies = [Tally() for _ in range(n_tasks)] if self._has_timings else []
        self._n_read = [-1] * n_tasks if self._has_progress else []  # tokens of each task's prompt, as last told

    def progress(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Yields the members of the events that tell, before those of this chunk, how much of its prompt was read."""
        if not self._has_progress:
            return
        last_told = self._n_read[chunk.index]
        if chunk.read_tokens <= last_told:
            return
        self._n_read[chunk.index] = chunk.read_tokens
        if last_told < 0 and chunk.read_tokens > chunk.cached_tokens:
            # The chunk that told of the beginning is part of this one: nobody read it before there was more.
            yield _progress(chunk, chunk.cached_tokens, 0.0)
        yield _progress(chunk, chunk.read_tokens, chunk.prompt_ms)

    def timings(self, chunk: Chunk) -> dict[str, Any]:
        """Takes each chunk once, in order; returns the members that its tokens bring, none where it has none."""
        if not self._has_timings:
            return {}
        tally = self._tallies[chunk.index]
        tally.add(chunk)
        return {"timings": tally.as_of(chunk).timings()} if chunk.tokens else {}


def _progress(chunk: Chunk, n_read: int, ms: float) -> dict[str, Any]:
    progress = PromptProgress(chunk.prompt_tokens, chunk.cached_tokens, n_read, round(ms))
    return {
        "timings": Tally(prompt_tokens=n_read, cached_tokens=chunk.cached_tokens, prompt_ms=ms).timings(),
        "prompt_progress": progress,
    }
