"""Drops the oldest turns of a conversation that its model's context does not hold: `truncation: "auto"`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from corosrv.base.errors import PromptTooLong
from corosrv.contracts.jobs import Prompt
from corosrv.dialects.chat.turns import Turn

# Of the context: what an answer gets whose length nobody set, and the most that is kept free for any.
_OPEN_ANSWER, _LONGEST_ANSWER = 0.25, 0.5


@dataclass(frozen=True, slots=True)
class ContextRoom:
    """Tells whether a prompt leaves room for its answer; `context` in tokens, 0 where nobody knows it."""

    context: int
    max_output_tokens: int | None
    count: Callable[[Prompt], int]  # raises PromptTooLong

    def holds(self, prompt: Prompt) -> bool:
        """Counts a prompt's tokens. May wait; raises as `count` does, but for PromptTooLong."""
        try:
            n_tokens = self.count(prompt)
        except PromptTooLong:
            return False
        return not self.context or n_tokens + self._answer_tokens <= self.context

    @property
    def _answer_tokens(self) -> int:
        wanted = self.max_output_tokens or int(self.context * _OPEN_ANSWER)
        return min(wanted, int(self.context * _LONGEST_ANSWER))


def newest_turns(turns: tuple[Turn, ...], fits: Callable[[tuple[Turn, ...]], bool]) -> tuple[Turn, ...]:
    """Returns the turns without as many of the oldest as it takes until the rest fits.

    System turns, the last that a user has said, and the last group stay even where they do not fit. A call goes with
    its results, and what a user has said with the answer. `fits` has to be true of fewer turns wherever it is of more.
    """
    if fits(turns):
        return turns
    groups = list(_droppable(turns))
    n_dropped = 1 + bisect_left(range(1, len(groups)), True, key=lambda n: fits(_drop(turns, groups[:n])))
    return _drop(turns, groups[:n_dropped])


def _drop(turns: tuple[Turn, ...], groups: list[range]) -> tuple[Turn, ...]:
    to_drop = {place for group in groups for place in group}
    return tuple(turn for place, turn in enumerate(turns) if place not in to_drop or turn["role"] == "system")


def _droppable(turns: tuple[Turn, ...]) -> Iterator[range]:
    """Yields the places of turns that go together, in the order in which they go.

    Before the last user's turn a group begins with each of the user's turns; behind it, with each answer of the model.
    """
    last_user = max((place for place, turn in enumerate(turns) if turn["role"] == "user"), default=-1)
    yield from _groups(turns, range(last_user), "user")
    behind = [*_groups(turns, range(last_user + 1, len(turns)), "assistant")]
    yield from behind[:-1]


def _groups(turns: tuple[Turn, ...], places: range, first_role: str) -> Iterator[range]:
    starts = [place for place in places if place == places.start or turns[place]["role"] == first_role]
    for start, stop in pairwise([*starts, places.stop]):
        yield range(start, stop)
