"""Policies that choose the upstream of a call."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from corosrv.base.errors import SettingsError
from corosrv.contracts.jobs.infer import ForwardRequest
from corosrv.fleet.upstreams.ids import rank_name
from corosrv.fleet.upstreams.prefixes import Mark, PrefixIndex, marks_of
from corosrv.fleet.upstreams.rendezvous import score
from corosrv.fleet.upstreams.turns import WeightedTurns
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HostGroup
from corosrv.workers.dispatch.policy import Policy

MIN_SHARE = 0.25  # of a prompt, which an upstream must know to be preferred for it
MAX_LEAD = 0.5  # of its permits, by which such an upstream may be busier than the idlest one


class LeastLoadedByWeight(Policy):
    """Chooses the upstream with the smallest share of its permits in use, divided by its weight.

    Of equals each gets its weight's share of the calls.
    """

    def __init__(self) -> None:
        self._turns: defaultdict[str, WeightedTurns] = defaultdict(WeightedTurns)  # by the key of a model

    def prefer(self, call: QueuedCall) -> HostGroup | None:
        return None

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        return groups[0] if len(groups) == 1 else min(groups, key=self._idleness(call))

    def _idleness(self, call: QueuedCall) -> Callable[[HostGroup], tuple[float, float, int]]:
        """Returns what groups are compared by for a call: the lowest is the least loaded, or of equals the next."""
        turn = self._turn(call)
        return lambda group: (group.load / group.group.weight, *turn(group))

    def _turn(self, call: QueuedCall) -> Callable[[HostGroup], tuple[float, int]]:
        turns = self._turns[call.key]
        return lambda group: (turns.place(group.host.id), group.turn)

    def note(self, call: QueuedCall, group: HostGroup) -> None:
        self._turns[call.key].take(group.host.id, group.group.weight)

    def forget(self, host_id: str) -> None:
        for key, turns in list(self._turns.items()):
            turns.forget(host_id)
            if not turns:
                del self._turns[key]


class RoundRobin(LeastLoadedByWeight):
    """Gives turns in proportion to weights, whatever the load; an upstream without a free permit loses its turn."""

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        return min(groups, key=self._turn(call))


class PowerOfTwo(LeastLoadedByWeight):
    """Draws two upstreams, and chooses the less loaded one."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """Takes the source of chance: numbers from 0 up to, but not, 1."""
        super().__init__()
        self._chance = chance

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        if len(groups) > 2:
            first = int(self._chance() * len(groups))
            second = int(self._chance() * (len(groups) - 1))
            groups = groups[first], groups[second + (second >= first)]
        return super().choose(call, groups)


class StickySessions(LeastLoadedByWeight):
    """Gives all calls of a session to one upstream while it takes calls, in every process to the same.

    A call waits a little for it if it has no free permit, then takes the next one of the session's ranking. Calls
    without a session go to the least loaded upstream.
    """

    def prefer(self, call: QueuedCall) -> HostGroup | None:
        groups = [group for group in call.entry.groups if group.n_permits]
        return self._first(call, groups) if call.job.terms.session and groups else None

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        return self._first(call, groups) if call.job.terms.session else super().choose(call, groups)

    def _first(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        """Returns the first in the ranking of the call's session."""
        key = f"{call.job.terms.caller}\0{call.job.terms.session}"
        return max(groups, key=lambda group: score(key, rank_name(group.host.id), group.group.weight))


class PrefixAware(LeastLoadedByWeight):
    """Gives a call to the upstream that has seen the longest beginning of its prompt.

    That must be MIN_SHARE of the prompt at least, and no upstream gets it that is busier than the idlest one by more
    than MAX_LEAD. A call waits a little for such an upstream if it has no free permit. All other calls go to the least
    loaded upstream.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._index = PrefixIndex()
        self._last_marks: tuple[int, list[Mark]] = (0, [])  # of the last call, by its number

    def prefer(self, call: QueuedCall) -> HostGroup | None:
        return self._knowing(call, [group for group in call.entry.groups if group.n_permits])

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        return self._knowing(call, groups) or super().choose(call, groups)

    def _knowing(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup | None:
        """Returns the group that knows enough of a call's prompt and is not too busy; None if none does."""
        if not (marks := self._marks(call)):
            return None
        limit = min((group.load for group in groups), default=0.0) + MAX_LEAD
        by_id = {group.host.id: group for group in groups if group.load <= limit}
        length, holders = self._index.longest(list(by_id), marks, self._clock())
        if length < MIN_SHARE * marks[-1][0]:
            return None
        return min((by_id[holder] for holder in holders), key=self._idleness(call))

    def note(self, call: QueuedCall, group: HostGroup) -> None:
        super().note(call, group)
        self._index.add(group.host.id, self._marks(call), self._clock())

    def forget(self, host_id: str) -> None:
        super().forget(host_id)
        self._index.forget(host_id)

    def _marks(self, call: QueuedCall) -> list[Mark]:
        """Returns the marks of a call's prompt, and keeps them: the next question is mostly about the same call."""
        if self._last_marks[0] != call.number:
            request = call.job.request
            prompt = request.prompt if isinstance(request, ForwardRequest) else b""
            self._last_marks = call.number, marks_of(prompt, call.key)
        return self._last_marks[1]


_MAKERS: dict[str, Callable[[Callable[[], float], Callable[[], float]], Policy]] = {
    "least_loaded": lambda clock, chance: LeastLoadedByWeight(),
    "power_of_two": lambda clock, chance: PowerOfTwo(chance),
    "round_robin": lambda clock, chance: RoundRobin(),
    "sticky": lambda clock, chance: StickySessions(),
    "prefix": lambda clock, chance: PrefixAware(clock),
}
POLICY_NAMES = tuple(_MAKERS)


def make_policy(
    name: str, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
) -> Policy:
    """Makes the policy of one dispatcher by the name that it has in settings. Raises SettingsError for another name.

    `clock`: the dispatcher's. `chance` gives numbers from 0 up to, but not, 1.
    """
    if name not in _MAKERS:
        raise SettingsError(f"upstream_policy must be one of {', '.join(POLICY_NAMES)}, not {name[:60]!r}")
    return _MAKERS[name](clock, chance)
