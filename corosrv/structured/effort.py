"""The processor time that the schemas of one request may take."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.errors import InvalidSchema
from corosrv.processor import thread_seconds
from corosrv.structured.limits import DEFAULT_LIMITS, SchemaLimits


class Effort:
    """Seconds of the processor, counted from the first look: whoever else computes takes nothing away.

    A few kilobytes of schema can ask for work without end: references to lists of references, patterns that are
    followed through texts. Asked for on the way, because no count of what is written tells beforehand. Belongs to one
    thread.
    """

    __slots__ = ("_end", "_give_way", "_seconds")

    def __init__(self, limits: SchemaLimits = DEFAULT_LIMITS, give_way: Callable[[], bool] = lambda: False) -> None:
        """`give_way` is called again and again, may let others run, and says whether it did."""
        self._seconds = limits.seconds
        self._give_way = give_way
        self._end = 0.0

    def check(self, param: str) -> None:
        """Raises InvalidSchema, which names `param`, when it was long enough. Waits where `give_way` does."""
        now = thread_seconds()
        if not self._end:
            self._end = now + self._seconds
        if now > self._end:
            what = f"takes more than {1000 * self._seconds:.0f} ms of processor time to convert; make it simpler"
            raise InvalidSchema("#", what, param)
        if self._give_way():
            self._end += thread_seconds() - now
