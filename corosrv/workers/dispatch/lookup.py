"""Finds the handler that a call is for: a model by name and version, or the best match of a capability query."""

from __future__ import annotations

import math
from collections.abc import Sequence

from corosrv.base.errors import Conflict, NotFound, NoWorker
from corosrv.contracts.jobs.infer import CapabilityTarget, ModelTarget, Target
from corosrv.workers.dispatch.capability import parse_preferences, parse_query, weigh
from corosrv.workers.dispatch.entries import QUARANTINED, HandlerEntry
from corosrv.workers.dispatch.registry import Registry
from corosrv.workers.dispatch.versions import default_card, natural_order

UNVERSIONED = "1"  # under which the repository's index lists a model that has no versions
RETRY_AFTER = 2  # seconds; about what a worker needs to start


def look_up(registry: Registry, target: Target) -> HandlerEntry:
    """Returns the entry that a call would get, whether it is ready or not.

    Raises NotFound; for a capability also Conflict, and Refused for a wrong query.
    """
    if isinstance(target, ModelTarget):
        return _find_model(registry, target)
    return _find_capability(registry, target)


def check_ready(entry: HandlerEntry, now: float) -> None:
    """Raises Unavailable if no worker serves the entry and none may be started for it, or if it is in quarantine."""
    if not entry.quarantine.admits(now):
        raise _quarantined(entry, now)
    if not entry.is_callable:
        raise unavailable(entry, now)


def unavailable(entry: HandlerEntry, now: float) -> NoWorker:
    """Makes the refusal of a call that no worker can take, now or soon."""
    if entry.quarantine.is_closed:
        return _quarantined(entry, now)
    error = NoWorker(f"{name_of(entry)} cannot be called now: {entry.reason}")
    error.retry_after = RETRY_AFTER if entry.retry_after is None else math.ceil(entry.retry_after)
    return error


def _quarantined(entry: HandlerEntry, now: float) -> NoWorker:
    seconds = math.ceil(entry.quarantine.pause_left(now))
    error = NoWorker(f"{name_of(entry)} cannot be called now: {QUARANTINED}; try again in {seconds} s")
    error.retry_after = seconds
    return error


def name_of(entry: HandlerEntry) -> str:
    """Returns the words that name a handler to a client."""
    version = f" version '{entry.card.version}'" if entry.card.version else ""
    kind = "model" if entry.card.capability is None else "capability"
    return f"the {kind} '{entry.card.name}'{version}"


def _find_model(registry: Registry, target: ModelTarget) -> HandlerEntry:
    versions = registry.versions(target.name)
    if not versions:
        raise NotFound(f"the model '{target.name[:120]}' does not exist here", "model_name", "model_not_found")
    if target.version:
        entry = versions.get(target.version)
        if entry is None and target.version == UNVERSIONED:
            entry = versions.get("")
        if entry is None:
            raise NotFound(
                f"the model '{target.name[:120]}' has no version '{target.version[:40]}'; {_list(versions)}",
                "model_version",
                "model_not_found",
            )
        return entry
    if len(versions) == 1:
        return next(iter(versions.values()))
    # What only lingers is not the default while something else is offered.
    offered = [entry.card for entry in versions.values() if entry.left_at is None]
    card = default_card(offered or [entry.card for entry in versions.values()])
    assert card is not None
    return versions[card.version]


def _list(versions: dict[str, HandlerEntry]) -> str:
    names = sorted(filter(None, versions), key=natural_order)
    return f"it has {', '.join(names[:20])}" if names else "it has no versions"


def _find_capability(registry: Registry, target: CapabilityTarget) -> HandlerEntry:
    query = parse_query(target.query)
    preferences = parse_preferences(target.prefer)
    matches = [entry for entry in registry.capabilities() if query.matches(entry.card.capability or {})]
    if not matches and target.is_fuzzy:
        matches = [entry for entry in registry.capabilities() if query.matches(entry.card.capability or {}, True)]
        _check_single(matches)
    if not matches:
        raise NotFound("no capability here satisfies the query", "capability", "capability_not_found")

    def rank(entry: HandlerEntry) -> tuple[object, ...]:
        capability = entry.card.capability or {}
        return (
            not entry.is_callable,
            -weigh(preferences, capability),
            entry.card.priority,
            query.count_extra(capability),
            not entry.has_free,
            entry.load,
            entry.turn,
        )

    return min(matches, key=rank)


def _check_single(matches: Sequence[HandlerEntry]) -> None:
    """Raises Conflict for several fuzzy matches: nobody may be served what was not asked for."""
    if len(matches) > 1:
        names = " and ".join(f"{entry.card.name!r} ({entry.key.removeprefix('cap:')})" for entry in matches[:2])
        raise Conflict(f"the fuzzy query is satisfied by {names}, which differ", "capability", "ambiguous")
