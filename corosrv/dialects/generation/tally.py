"""Counts what a job has used so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corosrv.contracts.jobs import Chunk
from corosrv.dialects.generation.answer_types import Timings


@dataclass(slots=True)
class Tally:
    """Counts over the tasks of a job that have ended; prompt tokens count once, however many answers (`n`) each prompt
    gets."""

    n: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0
    prompt_ms: float = 0.0
    decode_ms: float = 0.0

    def add(self, chunk: Chunk) -> None:
        self.completion_tokens += chunk.n_tokens
        if chunk.finish is None:
            return
        self.prompt_ms = max(self.prompt_ms, chunk.prompt_ms)
        self.decode_ms = max(self.decode_ms, chunk.decode_ms)
        if chunk.index % self.n == 0:
            self.prompt_tokens += chunk.prompt_tokens
            self.cached_tokens += chunk.cached_tokens
            self.image_tokens += chunk.image_tokens

    def as_of(self, chunk: Chunk) -> Tally:
        """Returns the tally of a single task at the moment when this chunk was made, which tells tokens."""
        return replace(
            self,
            prompt_tokens=chunk.prompt_tokens,
            cached_tokens=chunk.cached_tokens,
            prompt_ms=chunk.prompt_ms,
            decode_ms=chunk.decode_ms,
        )

    def timings(self) -> Timings:
        """Returns llama-server's timings; the rates leave out the first token, which comes from the prompt's batch."""
        computed = self.prompt_tokens - self.cached_tokens
        n_after_first = max(self.completion_tokens - 1, 0)
        return Timings(
            cache_n=self.cached_tokens,
            prompt_n=computed,
            prompt_ms=self.prompt_ms,
            prompt_per_token_ms=_ratio(self.prompt_ms, computed),
            prompt_per_second=_ratio(1000.0 * computed, self.prompt_ms),
            predicted_n=self.completion_tokens,
            predicted_ms=self.decode_ms,
            predicted_per_token_ms=_ratio(self.decode_ms, n_after_first),
            predicted_per_second=_ratio(1000.0 * n_after_first, self.decode_ms),
        )


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
