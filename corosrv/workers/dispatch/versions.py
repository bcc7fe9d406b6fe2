"""Orders versions, and says which one a call gets that names none."""

from __future__ import annotations

import re
from collections.abc import Iterable

from corosrv.contracts.jobs.infer import HandlerCard

_RUNS = re.compile(r"[0-9]+|[^0-9]+")
MAX_DIGITS = 18  # of a run that is read as a number; a longer one is compared as text


def natural_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Returns a key by which versions sort as people count: v9 before v10."""
    return tuple(
        (0, int(run), run) if run.isdigit() and len(run) <= MAX_DIGITS else (1, 0, run)
        for run in _RUNS.findall(version)
    )


def default_card(cards: Iterable[HandlerCard]) -> HandlerCard | None:
    """Returns what a call without a version gets: the unversioned card, one marked as default, or the highest."""
    return max(cards, key=lambda card: (not card.version, card.is_default, natural_order(card.version)), default=None)
