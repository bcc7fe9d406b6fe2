"""The processor time that the schemas of one request may take."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.base.errors import InvalidSchema
from corosrv.base.processor import thread_seconds
from corosrv.formats.structured.limits import DEFAULT_LIMITS, SchemaLimits


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
