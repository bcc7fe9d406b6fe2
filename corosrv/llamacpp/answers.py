"""llama-server's completions, the way out: chunks to answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from corosrv.errors import CorosrvError
from corosrv.generation import likelihood
from corosrv.generation.tally import Tally, check
from corosrv.jobs import Chunk, Finish, Job, ModelCard, TokenInfo
from corosrv.openai import events


@dataclass(frozen=True, slots=True)
class Shown:
    """What an answer shows beside the generated text."""

    settings: dict[str, Any]
    prompts: tuple[str, ...]  # as the model read them
    is_list: bool = False  # the answer is a list, whatever its length
    return_tokens: bool = False
    probs: bool = False
    timings_per_token: bool = False
    fields: tuple[str, ...] = ()  # members to be picked; none: all of them


class _Task:
    """One task's answer so far."""

    __slots__ = ("content", "has_new_line", "probs", "tally", "tokens", "told")

    def __init__(self, prompt_tokens: int) -> None:
        self.content: list[str] = []
        self.tokens: list[int] = []
        self.probs: list[TokenInfo] = []
        self.has_new_line = False
        self.told = -1  # of the prompt's tokens, how many have been told to be read
        self.tally = Tally(prompt_tokens, 1)

    def add(self, chunk: Chunk) -> None:
        self.tally.add(chunk)
        self.has_new_line = self.has_new_line or "\n" in chunk.text


class NativeAnswer:
    """One answer being put together."""

    def __init__(self, job: Job, card: ModelCard, prompt_tokens: Iterable[int], shown: Shown) -> None:
        self._n = job.n
        self._card = card
        self._context = card.meta.get("n_ctx", 0)
        self._shown = shown
        self._show_token = likelihood.probabilities if job.sampling.post_sampling_probs else likelihood.logprobs
        self._tasks = [_Task(n_tokens) for n_tokens in prompt_tokens for _ in range(job.n)]

    def whole(self, chunks: list[Chunk]) -> Any:
        last: dict[int, Chunk] = {}
        for chunk in chunks:
            check(chunk)
            task = self._tasks[chunk.index]
            task.add(chunk)
            task.content.append(chunk.text)
            if self._shown.return_tokens:
                task.tokens += [token.id for token in chunk.tokens]
            if self._shown.probs:
                task.probs += chunk.tokens
            if chunk.finish is not None:
                last[chunk.index] = chunk
        answers = [self._final(last[index]) for index in range(len(self._tasks))]
        return answers if self._shown.is_list else answers[0]

    def first(self) -> bytes:
        return b":\n\n"

    def events(self, chunks: list[Chunk]) -> bytes:
        sent = b""
        for chunk in chunks:
            check(chunk, sent)
            task = self._tasks[chunk.index]
            if chunk.read_tokens > task.told:
                task.told = chunk.read_tokens
                sent += events.event(self._progress(chunk))
            task.add(chunk)
            if chunk.text or (chunk.tokens and chunk.finish is None):
                sent += events.event(self._partial(chunk))
            if chunk.finish is not None:
                sent += events.event(self._final(chunk))
        return sent

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)

    def _progress(self, chunk: Chunk) -> dict[str, Any]:
        """How much of the prompt has been read, in an event without text."""
        reading = Tally(chunk.read_tokens, 1, 0, chunk.cached_tokens, chunk.prompt_ms)
        progress = {
            "total": chunk.prompt_tokens,
            "cache": chunk.cached_tokens,
            "processed": chunk.read_tokens,
            "time_ms": round(chunk.prompt_ms),
        }
        empty = self._partial(Chunk(chunk.index, "", 0)) | {"timings": reading.timings()}
        return empty | {"prompt_progress": progress}

    def _partial(self, chunk: Chunk) -> dict[str, Any]:
        tally = self._tasks[chunk.index].tally
        members = {
            "index": chunk.index,
            "content": chunk.text,
            "tokens": [token.id for token in chunk.tokens],
            "stop": False,
            "id_slot": chunk.slot,
            "tokens_predicted": tally.completion_tokens,
            "tokens_evaluated": tally.prompt_tokens,
        }
        if self._shown.timings_per_token:
            members["timings"] = tally.as_of(chunk).timings()
        if self._shown.probs and chunk.tokens:
            members["completion_probabilities"] = list(map(self._show_token, chunk.tokens))
        return members

    def _final(self, chunk: Chunk) -> dict[str, Any]:
        """A task's answer; of a stream, whose text is sent by then, with empty content."""
        task = self._tasks[chunk.index]
        n_predicted, n_prompt = task.tally.completion_tokens, task.tally.prompt_tokens
        members = {
            "index": chunk.index,
            "content": "".join(task.content),
            "tokens": task.tokens,
            "id_slot": chunk.slot,
            "stop": True,
            "model": self._card.id,
            "tokens_predicted": n_predicted,
            "tokens_evaluated": n_prompt,
            "generation_settings": self._shown.settings,
            "prompt": self._shown.prompts[chunk.index // self._n],
            "has_new_line": task.has_new_line,
            "truncated": self._is_truncated(chunk, n_prompt + n_predicted),
            "stop_type": _stop_type(chunk),
            "stopping_word": chunk.stopping_word,
            # The last token was never read by the model.
            "tokens_cached": n_prompt + max(n_predicted - 1, 0),
            "timings": task.tally.timings(),
        }
        if task.probs:
            members["completion_probabilities"] = list(map(self._show_token, task.probs))
        return pick(members, self._shown.fields) if self._shown.fields else members

    def _is_truncated(self, chunk: Chunk, n_tokens: int) -> bool:
        """The context was too small for all that there would have been."""
        return chunk.is_truncated or (chunk.finish is Finish.LENGTH and 0 < self._context <= n_tokens)


def _stop_type(chunk: Chunk) -> str:
    if chunk.finish is Finish.LENGTH:
        return "limit"
    return "word" if chunk.stopping_word else "eos"


def pick(members: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Members by name or by path, `a/b`, under which they then stand; those that there are not are left out."""
    picked = {}
    for path in fields:
        value: Any = members
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            picked[path] = value
    return picked
