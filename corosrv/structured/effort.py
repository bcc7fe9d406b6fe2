"""How long the schemas of one request may be worked on."""

from __future__ import annotations

from time import thread_time

from corosrv.errors import InvalidSchema
from corosrv.structured.limits import DEFAULT, Limits


class Effort:
    """Seconds of the processor, counted from the first look: whoever else computes takes nothing away.

    A few kilobytes of schema can ask for work without end: references to lists of references, patterns that are
    followed through texts. Asked for on the way, because no count of what is written tells beforehand. Belongs to one
    thread.
    """

    __slots__ = ("_end", "_seconds")

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._seconds = limits.seconds
        self._end = 0.0

    def check(self, param: str) -> None:
        """Raises InvalidSchema, which names `param`, when it was long enough."""
        now = thread_time()
        if not self._end:
            self._end = now + self._seconds
        if now > self._end:
            what = f"takes longer than {1000 * self._seconds:.0f} ms to be understood; ask for simpler values"
            raise InvalidSchema("#", what, param)
