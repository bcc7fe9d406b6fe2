from collections.abc import Sequence

import pytest

from corosrv.base.errors import NotHandedOver
from corosrv.workers.dispatch.call import QueuedCall
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.entries import HostGroup
from corosrv.workers.dispatch.policy import Policy
from tests.workers.dispatch.hosts import FakeClock, Front, card, ended


class LastById(Policy):
    """Chooses the host with the last id, prefers the one whose id is the call's session, and keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []
        self.left: list[str] = []

    def prefer(self, call: QueuedCall) -> HostGroup | None:
        ids = {group.host.id: group for group in call.entry.groups if group.n_permits}
        return ids.get(call.job.terms.session)

    def choose(self, call: QueuedCall, groups: Sequence[HostGroup]) -> HostGroup:
        assert groups
        return max(groups, key=lambda group: group.host.id)

    def note(self, call: QueuedCall, group: HostGroup) -> None:
        self.notes.append((call.job.terms.request_id, group.host.id))

    def forget(self, host_id: str) -> None:
        self.left.append(host_id)


@pytest.fixture
def policy() -> LastById:
    return LastById()


@pytest.fixture
def front(policy: LastById) -> Front:
    clock = FakeClock()
    return Front(clock, Dispatcher(None, clock, clock.make_alarm, lambda: 1.0, policy))


def test_the_policy_chooses_among_workers_with_a_free_permit(front: Front):
    hosts = [front.add(f"u/{i}") for i in range(3)]

    front.call()
    front.call()

    assert [len(host.calls) for host in hosts] == [0, 1, 1]


def test_a_call_waits_for_the_worker_that_the_policy_prefers_and_then_goes_where_it_chooses(front: Front):
    hosts = [front.add(f"u/{i}") for i in range(4)]
    front.call(session="u/1")

    front.call(session="u/1")
    assert [len(host.calls) for host in hosts] == [0, 1, 0, 0]
    front.clock.pass_time(0.21)

    assert [len(host.calls) for host in hosts] == [0, 1, 0, 1]


def test_a_call_that_must_not_wait_goes_where_the_policy_chooses_at_once(front: Front):
    hosts = [front.add(f"u/{i}") for i in range(3)]
    front.call(session="u/0")

    front.call(session="u/0", waits=False)

    assert [len(host.calls) for host in hosts] == [1, 0, 1]


def test_the_policy_is_told_of_every_start_from_the_queue_or_not(front: Front, policy: LastById):
    host = front.add("u/0")
    reader = front.call(request_id="a")
    front.call(request_id="b")

    host.calls[0].finish()

    assert ended(reader)
    assert policy.notes == [("a", "u/0"), ("b", "u/0")]


def test_a_call_that_is_tried_again_goes_where_the_policy_chooses_without_the_last_worker(front: Front):
    hosts = [front.add(f"u/{i}", card(is_idempotent=True)) for i in range(3)]
    front.call()

    hosts[2].calls[0].fail(NotHandedOver("the connection was refused"))
    front.clock.pass_time(1)

    assert [len(host.calls) for host in hosts] == [0, 1, 0]


def test_the_policy_is_told_of_a_worker_that_has_left(front: Front, policy: LastById):
    host = front.add("u/0")

    front.dispatcher.remove_host(host)

    assert policy.left == ["u/0"]
