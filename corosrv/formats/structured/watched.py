"""Writes rules for free text that is watched for words: the first that is complete decides what follows.

The rules are the states of Aho and Corasick's automaton, one for each beginning of a word. `Beginnings` finds rules
that can begin with themselves, which never come to a value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from corosrv.formats.structured.gbnf import NOTHING, char_set, either, literal


class Beginnings:
    """Collects, while rules are written, which rules each can begin with. Rules are written inside each other."""

    def __init__(self) -> None:
        self._begins_with: dict[str, set[str]] = {}
        self._owner: str | None = None  # the rule at whose beginning we are

    @contextmanager
    def rule_scope(self, owner: str | None) -> Iterator[None]:
        """Notes rules inside this block as beginnings of `owner`; notes none for None: text stands before them."""
        outer, self._owner = self._owner, owner
        try:
            yield
        finally:
            self._owner = outer

    def note(self, name: str) -> None:
        """Notes that a rule is used here."""
        if self._owner is not None:
            self._begins_with.setdefault(self._owner, set()).add(name)

    def has_circle(self) -> bool:
        """Returns whether some rule can begin with itself."""
        circle_free: set[str] = set()
        return any(self._leads_back(start, circle_free) for start in self._begins_with)

    def _leads_back(self, start: str, circle_free: set[str]) -> bool:
        """Follows references without recursion, as long as their chain may be."""
        path = [(start, self._successors(start))]
        on_path = {start}
        while path:
            name, successors = path[-1]
            successor = next(successors, None)
            if successor is None:
                path.pop()
                on_path.discard(name)
                circle_free.add(name)
            elif successor in on_path:
                return True
            elif successor not in circle_free:
                path.append((successor, self._successors(successor)))
                on_path.add(successor)
        return False

    def _successors(self, name: str) -> Iterator[str]:
        return iter(self._begins_with.get(name, ()))


class WordOverlap(ValueError):
    """A word stands within another, so that the longer one could never be complete; its arguments are both."""


@dataclass(slots=True, eq=False)
class _WordState:
    """The longest beginning of a word that the text read so far ends with."""

    children: dict[str, _WordState] = field(default_factory=dict)  # one letter longer, by that letter
    word: str | None = None  # set where the beginning is the whole word
    number: int = 0
    fallback: _WordState | None = None  # the longest other beginning that this one ends with; None for the root
    steps: dict[str, _WordState] = field(default_factory=dict)  # by the next letter; any other letter leads to the root


def watched_text(
    words: Mapping[str, str | None], prefix: str, may_end: bool, look: Callable[[int], object] = lambda n_rules: None
) -> Iterator[tuple[str, str]]:
    """Yields rules, as names and bodies, for text in which the first of `words` to be complete is followed by its item.

    The first rule is the start. A word without an item may not occur. `may_end`: the text may end without a word, also
    in the middle of one. An item may go on with more of the text by the name of the start. Raises WordOverlap.

    Each rule is written when it is asked for: whoever counts them may stop. Before the first, all words are read; after
    each one `look` is told how many rules there will be at least. It may wait and raise.
    """
    root = _trie(words, look)
    n_states = 1
    todo = deque([root])
    while todo:
        state = todo.popleft()
        fallen = state.fallback.steps if state.fallback else {}
        state.steps = fallen | state.children
        for letter, child in state.children.items():
            child.fallback = fallen.get(letter, root)
            _check_apart(child)
            if child.word is None:
                child.number = n_states
                n_states += 1
                todo.append(child)
        yield f"{prefix}-{state.number}", _body(state, words, prefix, may_end)


def _trie(words: Iterable[str], look: Callable[[int], object]) -> _WordState:
    root = _WordState()
    n_states = 1
    for n_words, word in enumerate(words, 1):
        state = root
        for letter in word:
            child = state.children.get(letter)
            if child is None:
                child = state.children[letter] = _WordState()
                n_states += 1
            state = child
        state.word = word
        look(n_states - n_words)  # a whole word needs none
    return root


def _check_apart(state: _WordState) -> None:
    """Raises WordOverlap if a word stands at the beginning, or as the end, of a longer one that begins with `state`.

    Called from short beginnings to long ones, so that a word at another place in a word has been found before.
    """
    assert state.fallback is not None
    inner = state.word if state.word is not None and state.children else state.fallback.word
    if inner is not None:
        while state.children:
            state = next(iter(state.children.values()))  # to the end of some word that begins so
        raise WordOverlap(inner, state.word)


def _body(state: _WordState, words: Mapping[str, str | None], prefix: str, may_end: bool) -> str:
    """Writes what may follow a beginning of a word."""
    steps = sorted(state.steps.items())
    other = char_set([(ord(letter), ord(letter)) for letter, _ in steps] or [(0, 0)], is_negated=True)
    alternatives = [f"{other} {prefix}-0"]
    for letter, following in steps:
        if following.word is None:
            alternatives.append(f"{literal(letter)} {prefix}-{following.number}")
        elif (item := words[following.word]) is not None:
            alternatives.append(f"{literal(letter)} {item}")
    if may_end:
        alternatives.append(NOTHING)
    return either(alternatives)
