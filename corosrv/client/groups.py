"""The groups that a rollout yields, a prompt and its answers, and the account of them: each ends once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from corosrv.base.errors import IllegalTransition

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


class GroupState(Enum):
    """States of a prompt that was submitted."""

    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"
    LOST = "lost"


_ENDS = frozenset({GroupState.COMPLETE, GroupState.PARTIAL, GroupState.LOST})
MOVES: dict[GroupState, frozenset[GroupState]] = {GroupState.RUNNING: _ENDS, **dict.fromkeys(_ENDS, frozenset())}


@dataclass(frozen=True, slots=True)
class LostGroup:
    """A prompt without any answer, and why."""

    index: int
    prompt: Any
    reason: str


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """Tells what became of the prompts of a rollout: n_submitted = n_complete + n_partial + n_lost + n_running."""

    n_submitted: int
    n_complete: int
    n_partial: int
    n_lost: int
    n_running: int
    n_retries: int  # requests that were sent again
    retry_reasons: dict[str, int]
    lost: tuple[LostGroup, ...]

    def __str__(self) -> str:
        reasons = Counter(group.reason for group in self.lost)
        why = "; ".join(f"{n} times {reason}" for reason, n in reasons.most_common(5))
        return (
            f"{self.n_submitted} groups submitted: {self.n_complete} complete, {self.n_partial} partial, "
            f"{self.n_lost} lost, {self.n_running} running; {self.n_retries} retries"
            + (f" (lost: {why})" if why else "")
        )


class RolloutLedger:
    """Counts prompts. Forgets one when it has ended, but those that are lost."""

    def __init__(self) -> None:
        self._running: dict[int, Any] = {}  # prompts by index
        self._counts = dict.fromkeys(_ENDS, 0)
        self._lost: list[LostGroup] = []
        self._n_submitted = 0
        self._retries: Counter[str] = Counter()

    def submit(self, prompt: Any) -> int:
        """Returns the index of the next prompt."""
        index = self._n_submitted
        self._n_submitted += 1
        self._running[index] = prompt
        return index

    def end(self, index: int, state: GroupState, reason: str = "") -> None:
        """Ends a prompt. Raises IllegalTransition for one that has ended."""
        old = GroupState.RUNNING if index in self._running else GroupState.LOST
        if state not in MOVES[old]:
            raise IllegalTransition(f"group {index}", old, state)
        prompt = self._running.pop(index)
        self._counts[state] += 1
        if state is GroupState.LOST:
            self._lost.append(LostGroup(index, prompt, reason))

    def count_retry(self, reason: str) -> None:
        self._retries[reason] += 1

    def report(self) -> RolloutReport:
        return RolloutReport(
            n_submitted=self._n_submitted,
            n_complete=self._counts[GroupState.COMPLETE],
            n_partial=self._counts[GroupState.PARTIAL],
            n_lost=self._counts[GroupState.LOST],
            n_running=len(self._running),
            n_retries=sum(self._retries.values()),
            retry_reasons=dict(self._retries),
            lost=tuple(self._lost),
        )
