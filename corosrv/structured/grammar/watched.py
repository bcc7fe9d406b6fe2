"""Writes rules for free text that is watched for words: the first that is complete decides what follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from corosrv.structured.grammar.gbnf import NOTHING, Rules, char_set, either, literal


class WordOverlap(ValueError):
    """A word stands within another, so that the longer one could never be complete; its arguments are both."""


def watched_text(words: Mapping[str, str | None], prefix: str, may_end: bool) -> Rules:
    """Makes rules for text in which the first of `words` to be complete is followed by its item, once.

    A word without an item may not occur. `may_end`: the text may end without a word, also in the middle of one. An item
    may go on with more of the text by the name of the rules' start. Raises WordOverlap.
    """
    _check_apart(tuple(words))
    states, steps = _automaton(tuple(words))
    letters = sorted({letter for word in words for letter in word})
    bodies = {
        f"{prefix}-{state}": _state(at, words, steps[at], states, letters, prefix, may_end)
        for at, state in states.items()
    }
    return Rules(f"{prefix}-0", bodies)


def _check_apart(words: tuple[str, ...]) -> None:
    for word in words:
        for other in words:
            if word != other and word in other:
                raise WordOverlap(word, other)


def _automaton(words: tuple[str, ...]) -> tuple[dict[str, int], dict[str, dict[str, str]]]:
    """Returns a number for each proper beginning of a word, and where each of the letters leads from there.

    A step leads to the longest beginning, or whole word, that the text then ends with; none of them is left out.
    """
    places = {word[:n] for word in words for n in range(len(word) + 1)}
    alphabet = {letter for word in words for letter in word}
    fallback = {"": ""}
    steps: dict[str, dict[str, str]] = {}
    todo = deque([""])
    while todo:
        at = todo.popleft()
        fallen = steps[fallback[at]] if at else {}
        steps[at] = {letter: at + letter if at + letter in places else fallen.get(letter, "") for letter in alphabet}
        for letter, place in steps[at].items():
            if place == at + letter and place not in words:
                fallback[place] = fallen.get(letter, "")
                todo.append(place)
    return {at: number for number, at in enumerate(steps)}, steps


def _state(
    at: str,
    words: Mapping[str, str | None],
    steps: Mapping[str, str],
    states: Mapping[str, int],
    letters: list[str],
    prefix: str,
    may_end: bool,
) -> str:
    """Writes what may follow a beginning of a word."""
    begun = [(letter, steps[letter]) for letter in letters if steps[letter]]
    other = char_set([(ord(letter), ord(letter)) for letter, _ in begun] or [(0, 0)], is_negated=True)
    alternatives = [f"{other} {prefix}-0"]
    for letter, place in begun:
        if place not in words:
            alternatives.append(f"{literal(letter)} {prefix}-{states[place]}")
        elif (item := words[place]) is not None:
            alternatives.append(f"{literal(letter)} {item}")
    if may_end:
        alternatives.append(NOTHING)
    return either(alternatives)
