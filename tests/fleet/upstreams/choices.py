"""Upstreams and calls for policies to choose among, without a dispatcher."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from corosrv.contracts.jobs.infer import ForwardRequest, InferJob, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.entries import HandlerEntry, HostGroup
from corosrv.workers.dispatch.estimates import KeyTraffic
from corosrv.workers.dispatch.host import LaneGroup
from corosrv.workers.dispatch.policy import Policy
from tests.workers.dispatch.hosts import FakeHost, card

MODEL = card("chat", platform="upstream", is_stream=True, is_idempotent=True)


class Choices:
    """A few upstreams that serve one model, and a policy that is asked about calls one by one."""

    def __init__(self, policy: Policy, *weights: float, n_slots: int = 4) -> None:
        self.policy = policy
        self.entry = HandlerEntry(MODEL.key, MODEL)
        self._numbers = itertools.count(1)
        for number, weight in enumerate(weights):
            self.add(f"u{number}", weight, n_slots)

    @property
    def groups(self) -> Sequence[HostGroup]:
        return self.entry.groups

    def add(self, id: str, weight: float = 1.0, n_slots: int = 4) -> HostGroup:
        host = upstream(id, weight, n_slots)
        self.entry.groups.append(HostGroup(host, host.groups[0]))
        return self.entry.groups[-1]

    def occupy(self, **numbers: int) -> None:
        """Takes permits of upstreams, by their ids."""
        for group in self.groups:
            for _ in range(numbers.get(group.host.id, 0)):
                assert group.permits.try_acquire() is not None

    def call(self, prompt: bytes = b"", model: str = "chat", **terms: str) -> QueuedCall:
        """Makes a call of a model, which all upstreams have."""
        job = InferJob(ModelTarget(model), ForwardRequest(prompt=prompt), True, Terms(**terms))
        entry = HandlerEntry(card(model).key, card(model), self.entry.groups)
        return QueuedCall(job, entry, KeyTraffic(), next(self._numbers), 0.0)

    def choose(self, prompt: bytes = b"", **options: str) -> str:
        """Returns the id of the upstream that a call gets, of those with a free permit."""
        call = self.call(prompt, **options)
        return self.policy.choose(call, [group for group in self.groups if group.has_free]).host.id

    def prefer(self, prompt: bytes = b"", **options: str) -> str | None:
        group = self.policy.prefer(self.call(prompt, **options))
        return None if group is None else group.host.id

    def start(self, id: str, prompt: bytes = b"", **options: str) -> None:
        """Tells the policy that an upstream has been given a call."""
        self.policy.note(self.call(prompt, **options), next(group for group in self.groups if group.host.id == id))

    def run(self, prompt: bytes = b"", **options: str) -> str:
        """Lets a call run that takes no time, and returns by which upstream."""
        id = self.choose(prompt, **options)
        self.start(id, prompt, **options)
        return id


def upstream(id: str, weight: float = 1.0, n_slots: int = 4) -> FakeHost:
    host = FakeHost(id, [MODEL], n_slots=n_slots)
    host.groups = [LaneGroup((0,), host.permits, weight)]
    return host
