"""Authors' regular expressions over clients' texts: one that might never end must not stop the server."""

from __future__ import annotations

import json
import math
import re
import signal
import sys
from functools import lru_cache

from gevent.lock import BoundedSemaphore
from gevent.subprocess import PIPE, Popen, TimeoutExpired

from corosrv.errors import TooBusy

TIME_LIMIT = 1.0  # seconds of the processor for all slow patterns of one input
PATIENCE = 20.0  # seconds in which the process has to get them; it may be paused, or have to share the processor
_AT_ONCE = 2  # processes
_MAX_STEPS = 500_000  # some 10 ms
_PLAIN_GROUPS = re.compile(r"\((?!\?)|\(\?:|\(\?P<\w+>")
_ESCAPES_AND_SETS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEATS = re.compile(r"[*+?]|\{(\d*),(\d*)\}")
# In a process of its own, which the timer's signal can end: nothing else can end a match.
_PROGRAM = """\
import json, re, signal, sys
seconds, pairs = json.load(sys.stdin)
signal.setitimer(signal.ITIMER_PROF, seconds)
for pattern, text in pairs:
    print(int(re.search(pattern, text) is not None), flush=True)
"""
_USED_UP = -signal.SIGPROF


class Patterns:
    """Says whether patterns are found in texts. Short work is done at once, the rest by a process with a time limit."""

    def __init__(self) -> None:
        self._processes = BoundedSemaphore(_AT_ONCE)

    def found_at_once(self, pattern: str, text: str) -> bool | None:
        """None: it might take long, and is for `found`."""
        if _shape(pattern).steps(len(text)) > _MAX_STEPS:
            return None
        return re.search(pattern, text) is not None

    def found(self, pairs: list[tuple[str, str]]) -> list[bool | None]:
        """Whether each pattern is found in its text; None where the processor time was used up before. Waits.

        Raises TooBusy where the process was kept from using that time.
        """
        if not pairs:
            return []
        with self._processes, Popen([sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=PIPE, stdout=PIPE) as process:
            try:
                output, _ = process.communicate(json.dumps((TIME_LIMIT, pairs)).encode(), timeout=PATIENCE)
            except TimeoutExpired:
                raise TooBusy("the patterns of the input could not be checked in time; try again") from None
            finally:
                process.kill()
        answers: list[bool | None] = [line == b"1" for line in output.split()]
        if len(answers) < len(pairs) and process.returncode != _USED_UP:
            raise TooBusy("the process that checks the patterns of the input ended; try again")
        return answers + [None] * (len(pairs) - len(answers))


class _Shape:
    """How the work of a pattern grows with the text, by its repetitions alone: never less than it can be."""

    def __init__(self, pattern: str) -> None:
        bare = _ESCAPES_AND_SETS.sub("x", pattern)
        groups = len(re.findall(r"\(", bare))
        has_odd_groups = len(_PLAIN_GROUPS.findall(bare)) != groups
        refers_back = re.search(r"\\[1-9]|\(\?P=", pattern) is not None
        # A repeated group may match the same text in exponentially many ways.
        self._is_boundless = has_odd_groups or refers_back or re.search(r"\)[*+{]", bare) is not None
        self._most = [self._upmost(found) for found in _REPEATS.finditer(bare)]
        self._branches = bare.count("|") + 1
        self._is_anchored = self._branches == 1 and pattern.startswith(("^", r"\A"))

    @staticmethod
    def _upmost(found: re.Match[str]) -> float:
        if found[0] == "?":
            return 1
        return float(found[2]) if found[2] else math.inf

    def steps(self, length: int) -> float:
        if self._is_boundless:
            return math.inf
        ways = math.prod(min(most, length) + 1 for most in self._most) * self._branches
        return ways if self._is_anchored else ways * (length + 1)


@lru_cache(maxsize=256)
def _shape(pattern: str) -> _Shape:
    return _Shape(pattern)
