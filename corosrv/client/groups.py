"""The groups that a rollout yields: a prompt and its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

CANCELLED = "cancelled"

_ABORT_WORDS = frozenset({"abort", "aborted", "cancelled", "canceled"})  # of corosrv, vLLM, SGLang, and others


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """One token of an answer. `id` is None where the server does not tell it."""

    text: str
    logprob: float | None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """One of the answers to a prompt.

    `finish` is `stop`, `length`, `tool_calls`, or `cancelled` for an answer that an abort cut off. `tokens` are there
    if the rollout asks for `logprobs`. `choice` is the answer as the server gave it.
    """

    text: str
    finish: str
    tokens: tuple[AnswerToken, ...]
    choice: dict[str, Any]

    @property
    def is_complete(self) -> bool:
        return self.finish != CANCELLED


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """A prompt and its answers. `index` is the prompt's place among those of the rollout, from 0 on."""

    index: int
    prompt: Any
    answers: tuple[GroupAnswer, ...]
    is_complete: bool  # all answers are there, and none was cut off
    n_attempts: int = 1  # requests that it took
    prompt_tokens: int = 0
    completion_tokens: int = 0


def read_answers(choices: Sequence[Any]) -> tuple[GroupAnswer, ...]:
    """Reads the choices of a chat or text completion, in their order. Raises ValueError for what is none."""
    if not all(isinstance(choice, dict) for choice in choices):
        raise ValueError("a choice of the answer is no object")
    return tuple(map(_read_answer, sorted(choices, key=lambda choice: choice.get("index") or 0)))


def _read_answer(choice: dict[str, Any]) -> GroupAnswer:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    reason = str(choice.get("finish_reason") or "stop")
    finish = CANCELLED if reason in _ABORT_WORDS else reason
    return GroupAnswer(text or "", finish, tuple(_tokens(choice.get("logprobs"))), choice)


def _tokens(logprobs: Any) -> Iterator[AnswerToken]:
    if not isinstance(logprobs, dict):
        return
    for entry in logprobs.get("content") or ():  # chats
        yield AnswerToken(entry["token"], entry.get("logprob"), entry.get("id"))
    if "content" not in logprobs:  # texts
        pairs = zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=False)
        for text, logprob in pairs:
            yield AnswerToken(text, logprob)
