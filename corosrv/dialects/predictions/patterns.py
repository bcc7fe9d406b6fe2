"""Searches clients' texts for authors' regular expressions; one that might never end must not stop the server."""

from __future__ import annotations

import json
import math
import re
import signal
import sys
from functools import lru_cache

from gevent.lock import BoundedSemaphore
from gevent.subprocess import PIPE, Popen, TimeoutExpired

from corosrv.base.errors import TooBusy
from corosrv.contracts.settings import child_environment

TIME_LIMIT = 1.0  # seconds of the processor for all slow patterns of one input
PATIENCE = 20.0  # seconds to wait for the process, which may be paused or share the processor
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
    """Searches texts for patterns: short work at once, the rest in a process with a time limit."""

    def __init__(self) -> None:
        self._processes = BoundedSemaphore(_AT_ONCE)

    def try_search(self, pattern: str, text: str) -> bool | None:
        """Returns whether the pattern is in the text, or None if the search might take long and needs `search`."""
        if _cost(pattern).steps(len(text)) > _MAX_STEPS:
            return None
        return re.search(pattern, text) is not None

    def search(self, pairs: list[tuple[str, str]]) -> list[bool | None]:
        """Returns for each pair whether the pattern is in the text; None if the processor time ran out first. Waits.

        Raises TooBusy if the process could not use its processor time.
        """
        if not pairs:
            return []
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
        with self._processes, Popen(command, stdin=PIPE, stdout=PIPE, env=child_environment()) as process:
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


class _Cost:
    """An upper bound of the steps that a search takes, from the pattern's repetitions alone."""

    def __init__(self, pattern: str) -> None:
        skeleton = _ESCAPES_AND_SETS.sub("x", pattern)
        groups = len(re.findall(r"\(", skeleton))
        has_odd_groups = len(_PLAIN_GROUPS.findall(skeleton)) != groups
        refers_back = re.search(r"\\[1-9]|\(\?P=", pattern) is not None
        # A repeated group may match the same text in exponentially many ways.
        self._is_boundless = has_odd_groups or refers_back or re.search(r"\)[*+{]", skeleton) is not None
        self._max_repeats = [self._max_of(repeat) for repeat in _REPEATS.finditer(skeleton)]
        self._branches = skeleton.count("|") + 1
        self._is_anchored = self._branches == 1 and pattern.startswith(("^", r"\A"))

    @staticmethod
    def _max_of(repeat: re.Match[str]) -> float:
        if repeat[0] == "?":
            return 1
        return float(repeat[2]) if repeat[2] else math.inf

    def steps(self, length: int) -> float:
        if self._is_boundless:
            return math.inf
        ways = math.prod(min(most, length) + 1 for most in self._max_repeats) * self._branches
        return ways if self._is_anchored else ways * (length + 1)


@lru_cache(maxsize=256)
def _cost(pattern: str) -> _Cost:
    return _Cost(pattern)
