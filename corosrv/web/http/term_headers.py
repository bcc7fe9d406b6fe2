"""Reads the headers that say how urgent a request is and for how long its answer is of use; in gRPC, its metadata.

The rule is the same for all protocols: whoever sends such a header means something by it, so one that is empty or out
of range is refused. No time at all, `0`, is out of range: a client whose time is over wants no call without a limit.
"""

from __future__ import annotations

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.job import LAST_PRIORITY

PRIORITY = "X-Priority"
TIMEOUT = "X-Request-Timeout-Ms"
MAX_TIMEOUT_MS = 1_000_000_000

_MAX_DIGITS = 12


def parse_priority(text: str | None) -> int:
    """Returns the priority in the value of X-Priority; 0 if it or the header's absence leaves that to the server.

    Raises Refused, which names the header.
    """
    return 0 if text is None else _parse_number(PRIORITY, text, 0, LAST_PRIORITY)


def parse_timeout(text: str | None) -> float | None:
    """Returns the seconds in the value of X-Request-Timeout-Ms, which has milliseconds; None without the header.

    Raises Refused, which names the header.
    """
    return None if text is None else _parse_number(TIMEOUT, text, 1, MAX_TIMEOUT_MS) / 1000


def _parse_number(header: str, text: str, least: int, most: int) -> int:
    digits = text.strip()
    if (
        digits.isascii()
        and digits.isdigit()
        and len(digits) <= _MAX_DIGITS
        and least <= (number := int(digits)) <= most
    ):
        return number
    raise Refused(f"{header}: must be an integer from {least} to {most}, not {digits[:40]!r}", header)
