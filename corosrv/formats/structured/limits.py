"""The limits of schemas and of the values generated for them, and the processor time that one request's may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from corosrv.base.errors import InvalidSchema
from corosrv.base.processor import thread_seconds


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """Limits of a schema, and of the values that are generated where the schema sets no end."""

    # A schema over one of these is refused.
    grammar_bytes: int = 65_536  # of the GBNF that is made of it
    rules: int = 2_000  # of that GBNF
    nodes: int = 20_000  # values of any kind in the schema
    chars: int = 1_000_000  # of all its names and texts
    depth: int = 64  # schemas in schemas; brackets in a pattern
    properties: int = 1_000  # named ones, in all of the schema
    enum: int = 1_000  # values of one enum
    repetitions: int = 2_000  # a least number of characters, items or properties
    pattern_chars: int = 2_000
    pattern_size: int = 10_000  # character sets, with all repetitions written out
    watched_chars: int = 16_384  # of all words that end free text, or begin something in it
    seconds: float = 0.25  # of computing, for all schemas of a request

    # Ends of generated values, where the schema sets none or a later one.
    string_chars: int = 1_000
    matched_chars: int = 256  # of a string with a pattern, where each length may be followed by itself
    key_chars: int = 64
    items: int = 64
    extra_properties: int = 64  # that have no name in the schema
    digits: int = 15  # of a number, all a double can hold
    value_depth: int = 5  # objects and arrays in each other, where any value may stand


DEFAULT_LIMITS = SchemaLimits()


class Effort:
    """A budget of processor seconds of this thread, counted from the first check(). Belongs to one thread.

    A few kilobytes of schema can ask for work without end: references to lists of references, patterns that are
    followed through texts. It is checked on the way, because no count of the schema's parts tells it beforehand.
    """

    __slots__ = ("_end", "_give_way", "_seconds")

    def __init__(self, limits: SchemaLimits = DEFAULT_LIMITS, give_way: Callable[[], bool] = lambda: False) -> None:
        """`give_way` is called by every check(); it may let other greenlets run, and returns whether it did."""
        self._seconds = limits.seconds
        self._give_way = give_way
        self._end = 0.0

    def check(self, param: str) -> None:
        """Raises InvalidSchema, which names `param`, when the budget is used up. Waits where `give_way` does."""
        start = thread_seconds()
        if not self._end:
            self._end = start + self._seconds
        if start > self._end:
            problem = f"takes more than {1000 * self._seconds:.0f} ms of processor time to convert; make it simpler"
            raise InvalidSchema("#", problem, param)
        if self._give_way():
            self._end += thread_seconds() - start
