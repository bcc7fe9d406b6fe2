"""Policies that choose the upstream of a call, and what they are made of.

Upstreams are named by their URLs, so that all fronts which share one know it by one name. Sessions are ranked by
rendezvous hashing: a change of one upstream changes the rank of no others. `WeightedTurns` gives turns in proportion to
weights. `PrefixIndex` remembers which upstream has seen which beginnings of prompts: it has computed them, and may
still hold them.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from hashlib import blake2b
from itertools import count

from corosrv.base.errors import SettingsError
from corosrv.contracts.jobs.infer import ForwardRequest
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HostGroup
from corosrv.workers.dispatch.policy import Policy

_SIZE = 6  # bytes of the hash: among a thousand upstreams two are alike once in half a billion servers
_MARK = "."  # before the number of an entry that is not the first of its URL


def upstream_id(url: str, ids: Container[str]) -> str:
    """Returns the id of an upstream at this URL that is not among these.

    The first entry of a URL has the same id in every process; one that comes while an older drains has a number behind.
    """
    first = f"upstream-{blake2b(url.encode(), digest_size=_SIZE).hexdigest()}"
    later = (f"{first}{_MARK}{number}" for number in count(2))
    return first if first not in ids else next(id for id in later if id not in ids)


def rank_name(id: str) -> str:
    """Returns the name by which an upstream is ranked for sessions: that of its URL, whichever entry of it this is."""
    return id.partition(_MARK)[0]


_BITS = 52  # of a hash that are used: a float between 0 and 1 holds them, and is neither


def score(key: str, upstream: str, weight: float = 1.0) -> float:
    """Returns how well an upstream suits a key, the same in every process: the one with the highest score has the key.

    Of many keys an upstream has its weight's share.
    """
    text = f"{upstream}\0{key}".encode(errors="surrogatepass")
    digest = int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> (64 - _BITS)
    return -weight / math.log((digest + 0.5) / (1 << _BITS))


class WeightedTurns:
    """Keeps a place on one line for each upstream, which moves on by 1 / weight with every turn: the lowest is next.

    An upstream that could not take its turns for a while has lost them: it starts again where the others are.
    """

    def __init__(self) -> None:
        self._places: dict[str, float] = {}  # by the upstream's id
        self._front = 0.0  # the furthest place from which a turn was taken

    def __len__(self) -> int:
        """Returns the number of upstreams that have taken turns and are not forgotten."""
        return len(self._places)

    def place(self, upstream: str) -> float:
        return max(self._places.get(upstream, 0.0), self._front)

    def take(self, upstream: str, weight: float) -> None:
        """Records that an upstream has taken a turn."""
        self._front = self.place(upstream)
        self._places[upstream] = self._front + 1 / weight

    def forget(self, upstream: str) -> None:
        self._places.pop(upstream, None)


FIRST_BLOCK = 64  # bytes; the finest step in which beginnings are told apart
GROWTH = 8  # a block is an eighth of what is before it, so that long prompts have few blocks
MAX_PROMPT = 1 << 20  # bytes of a prompt that are looked at
MAX_MARKS = 1 << 17  # that are remembered, of all upstreams together: some 20 MB
LIFETIME = 3600.0  # seconds after which an upstream is no longer expected to hold what it has seen

Mark = tuple[int, int]  # a beginning of a prompt: its length in bytes, and its hash


def _block_ends() -> Iterator[int]:
    end = 0
    while (end := end + max(FIRST_BLOCK, end // GROWTH // FIRST_BLOCK * FIRST_BLOCK)) <= MAX_PROMPT:
        yield end


BLOCK_ENDS = tuple(_block_ends())


def marks_of(prompt: bytes, model: str = "") -> list[Mark]:
    """Returns the beginnings by which a prompt is known, the shortest first; none if it is shorter than one block.

    Prompts of one model that begin alike share marks. Hashes differ between processes, as those of Python do.
    """
    marks: list[Mark] = []
    start, digest = 0, hash(model)
    for end in BLOCK_ENDS:
        if end > len(prompt):
            break
        digest = hash((digest, prompt[start:end]))
        marks.append((end, digest))
        start = end
    return marks


class PrefixIndex:
    """Maps the beginnings of prompts to upstreams that have seen them. Nothing waits; the time is passed in.

    It holds at most `max_marks` marks, and forgets those first that were added longest ago.
    """

    def __init__(self, max_marks: int = MAX_MARKS) -> None:
        self._max_marks = max_marks
        self._seen: OrderedDict[int, float] = OrderedDict()  # when, by a mark's hash salted with its upstream's
        self._salts: dict[str, int] = {}  # by the upstream's id
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        """Returns the number of marks, those of forgotten upstreams among them until they are the oldest."""
        return len(self._seen)

    def add(self, upstream: str, marks: Sequence[Mark], now: float) -> None:
        """Records that an upstream is sent a prompt with these marks."""
        salt = self._salts.get(upstream)
        if salt is None:
            salt = self._salts[upstream] = hash((upstream, next(self._numbers)))
        for _, digest in reversed(marks):  # so that of one prompt the longest, which fewest others share, leaves first
            self._seen[digest ^ salt] = now
            self._seen.move_to_end(digest ^ salt)
        while len(self._seen) > self._max_marks:
            self._seen.popitem(last=False)

    def longest(self, upstreams: Sequence[str], marks: Sequence[Mark], now: float) -> tuple[int, list[str]]:
        """Returns the length of the longest beginning that some of these upstreams have seen, and which have."""
        salts = [(upstream, salt) for upstream in upstreams if (salt := self._salts.get(upstream)) is not None]
        for length, digest in reversed(marks) if salts else ():
            holders = [upstream for upstream, salt in salts if self._is_fresh(digest ^ salt, now)]
            if holders:
                return length, holders
        return 0, []

    def _is_fresh(self, digest: int, now: float) -> bool:
        seen_at = self._seen.get(digest)
        return seen_at is not None and now - seen_at <= LIFETIME

    def forget(self, upstream: str) -> None:
        """Forgets what an upstream has seen; one that comes with its id later has seen nothing."""
        self._salts.pop(upstream, None)


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
