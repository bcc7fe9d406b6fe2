"""Remembers which upstream has seen which beginnings of prompts: it has computed them, and may still hold them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence

FIRST_BLOCK = 64  # bytes; the finest step in which beginnings are told apart
GROWTH = 8  # a block is an eighth of what is before it, so that long prompts have few blocks
MAX_PROMPT = 1 << 20  # bytes of a prompt that are looked at
MAX_MARKS = 1 << 17  # that are remembered, of all upstreams together: some 20 MB
LIFETIME = 3600.0  # seconds after which an upstream is no longer expected to hold what it has seen

Mark = tuple[int, int]  # a beginning of a prompt: its length in bytes, and its hash


def _block_ends() -> Iterator[int]:
    end = 0
    while (end := end + max(FIRST_BLOCK, end // GROWTH // FIRST_BLOCK * FIRST_BLOCK)) <= MAX_PROMPT:
        yield end


BLOCK_ENDS = tuple(_block_ends())


def marks_of(prompt: bytes, model: str = "") -> list[Mark]:
    """Returns the beginnings by which a prompt is known, the shortest first; none if it is shorter than one block.

    Prompts of one model that begin alike share marks. Hashes differ between processes, as those of Python do.
    """
    marks: list[Mark] = []
    start, digest = 0, hash(model)
    for end in BLOCK_ENDS:
        if end > len(prompt):
            break
        digest = hash((digest, prompt[start:end]))
        marks.append((end, digest))
        start = end
    return marks


class PrefixIndex:
    """Maps the beginnings of prompts to upstreams that have seen them. Nothing waits; the time is passed in.

    It holds at most `max_marks` marks, and forgets those first that were added longest ago.
    """

    def __init__(self, max_marks: int = MAX_MARKS) -> None:
        self._max_marks = max_marks
        self._seen: OrderedDict[int, float] = OrderedDict()  # when, by a mark's hash salted with its upstream's
        self._salts: dict[str, int] = {}  # by the upstream's id
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        """Returns the number of marks, those of forgotten upstreams among them until they are the oldest."""
        return len(self._seen)

    def add(self, upstream: str, marks: Sequence[Mark], now: float) -> None:
        """Records that an upstream is sent a prompt with these marks."""
        salt = self._salts.get(upstream)
        if salt is None:
            salt = self._salts[upstream] = hash((upstream, next(self._numbers)))
        for _, digest in reversed(marks):  # so that of one prompt the longest, which fewest others share, leaves first
            self._seen[digest ^ salt] = now
            self._seen.move_to_end(digest ^ salt)
        while len(self._seen) > self._max_marks:
            self._seen.popitem(last=False)

    def longest(self, upstreams: Sequence[str], marks: Sequence[Mark], now: float) -> tuple[int, list[str]]:
        """Returns the length of the longest beginning that some of these upstreams have seen, and which have."""
        salts = [(upstream, salt) for upstream in upstreams if (salt := self._salts.get(upstream)) is not None]
        for length, digest in reversed(marks) if salts else ():
            holders = [upstream for upstream, salt in salts if self._is_fresh(digest ^ salt, now)]
            if holders:
                return length, holders
        return 0, []

    def _is_fresh(self, digest: int, now: float) -> bool:
        seen_at = self._seen.get(digest)
        return seen_at is not None and now - seen_at <= LIFETIME

    def forget(self, upstream: str) -> None:
        """Forgets what an upstream has seen; one that comes with its id later has seen nothing."""
        self._salts.pop(upstream, None)
