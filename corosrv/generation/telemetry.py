"""How far a job is, told beside its answer to clients that ask for it, as llama-server tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from corosrv.generation.fields import GenerationFields
from corosrv.generation.tally import Tally
from corosrv.jobs import Chunk, Job


@dataclass(frozen=True, slots=True)
class Told:
    """What is told beside a streamed answer; one that is not streamed has its timings anyway."""

    timings: bool = False  # of every token
    progress: bool = False  # of reading the prompt

    @classmethod
    def of(cls, fields: GenerationFields, stream: bool) -> Told:
        return cls(bool(fields.timings_per_token), bool(fields.return_progress)) if stream else cls()

    def by(self, job: Job) -> Job:
        """The same job, whose chunks tell this."""
        job = replace(job, tells_progress=self.progress)
        return tells_tokens(job) if self.timings else job


def tells_tokens(job: Job) -> Job:
    """The same job, whose chunks tell their tokens, if they did not already."""
    if job.sampling.n_probs >= 0:
        return job
    return replace(job, sampling=replace(job.sampling, n_probs=0))


class Telemetry:
    """Of one streamed answer: the members that its events have beside the dialect's own."""

    def __init__(self, n_tasks: int, told: Told) -> None:
        self._tallies = [Tally() for _ in range(n_tasks)]
        self._read = [-1] * len(self._tallies)
        self._told = told
        self.is_wanted = told.timings or told.progress

    def progress(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """What is told when more of a prompt was read, in events of its own before those of the chunk."""
        last_told = self._read[chunk.index]
        if not self._told.progress or chunk.read_tokens <= last_told:
            return
        self._read[chunk.index] = chunk.read_tokens
        if last_told < 0 and chunk.read_tokens > chunk.cached_tokens:
            # The chunk that told of the beginning is part of this one: nobody read it before there was more.
            yield _progress(chunk, chunk.cached_tokens, 0.0)
        yield _progress(chunk, chunk.read_tokens, chunk.prompt_ms)

    def timings(self, chunk: Chunk) -> dict[str, Any]:
        """What is told with the tokens of a chunk; nothing where there are none."""
        if not self._told.timings:
            return {}
        tally = self._tallies[chunk.index]
        tally.add(chunk)
        return {"timings": tally.as_of(chunk).timings()} if chunk.tokens else {}


def _progress(chunk: Chunk, n_read: int, ms: float) -> dict[str, Any]:
    progress = {
        "total": chunk.prompt_tokens,
        "cache": chunk.cached_tokens,
        "processed": n_read,
        "time_ms": round(ms),
    }
    return {
        "timings": Tally(prompt_tokens=n_read, cached_tokens=chunk.cached_tokens, prompt_ms=ms).timings(),
        "prompt_progress": progress,
    }
