"""Keeps account of a rollout's prompts: each is submitted once, and ends once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any

from corosrv.base.errors import IllegalTransition


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
