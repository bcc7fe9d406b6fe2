import random
from collections import Counter

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.jobs.infer import ForwardRequest, InferJob, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.contracts.settings.fleet import POLICIES
from corosrv.fleet.upstreams.exchange import ExchangeLimits
from corosrv.fleet.upstreams.policies import POLICY_NAMES, make_policy, score
from corosrv.fleet.upstreams.spec import UpstreamSpec
from corosrv.fleet.upstreams.upstream import Upstream, UpstreamHost
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.policy import Policy
from tests.fleet.upstreams.choices import Choices, upstream
from tests.workers.dispatch.hosts import FakeClock, FakeHost, Front


def policy(name: str, clock: FakeClock | None = None) -> Policy:
    return make_policy(name, clock or FakeClock(), random.Random(1).random)


def text(n_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(n_bytes)


# All of them.


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_no_policy_chooses_an_upstream_without_a_free_permit(name: str):
    chance = random.Random(7)
    choices = Choices(policy(name), 1, 2, 0.5, 1, 3, n_slots=2)
    held = []
    for number in range(3000):
        if len(held) == 10 or (held and chance.random() < 0.48):
            held.pop(chance.randrange(len(held))).release()
            continue
        call = choices.call(text(400, number % 7), session=f"session {number % 9}")
        free = [group for group in choices.groups if group.has_free]

        group = choices.policy.choose(call, free)

        assert group in free
        choices.policy.note(call, group)
        held.append(group.permits.try_acquire())


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_lone_upstream_gets_every_call(name: str):
    choices = Choices(policy(name), 1)

    assert {choices.run(prompt=text(500, number), session=f"{number}") for number in range(20)} == {"u0"}


@pytest.mark.parametrize("name", ["least_loaded", "round_robin"])
@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1), (1, 2, 5), (0.5, 1.5)])
def test_ten_thousand_choices_among_idle_upstreams_keep_to_their_weights(name: str, weights):
    choices = Choices(policy(name), *weights)

    counts = Counter(choices.run() for _ in range(10_000))

    for number, weight in enumerate(weights):
        assert counts[f"u{number}"] == pytest.approx(10_000 * weight / sum(weights), abs=2)


@pytest.mark.parametrize("name", ["least_loaded", "round_robin"])
def test_calls_of_another_model_take_no_turns_of_a_model(name: str):
    choices = Choices(policy(name), 3, 1)
    counts = Counter()

    for number in range(400):
        choices.start(f"u{number % 2}", model="other")
        counts[choices.run()] += 1

    assert counts["u0"] == pytest.approx(300, abs=2)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_new_upstream_is_not_flooded_to_make_up_for_the_past(name: str):
    choices = Choices(policy(name), 1, 1)
    for number in range(300):
        choices.run(prompt=text(100, number))
    choices.add("new")

    counts = Counter(choices.run(prompt=text(100, 1000 + number)) for number in range(30))

    assert 1 <= counts["new"] <= 20


@pytest.mark.parametrize("name", ["", "random", "Sticky"])
def test_a_policy_of_another_name_is_refused_with_the_names_that_there_are(name: str):
    with pytest.raises(SettingsError, match=r"upstream_policy must be one of least_loaded, .*prefix, not"):
        make_policy(name)


def test_settings_name_the_policies_that_there_are():
    assert POLICIES == POLICY_NAMES


def test_the_weight_of_an_upstream_is_the_one_of_its_description():
    member = Upstream("u0", UpstreamSpec(url="http://127.0.0.1:1", weight=2.5), ExchangeLimits())
    try:
        assert [group.weight for group in UpstreamHost(member, 1).groups] == [2.5]
    finally:
        member.close()


# Least loaded.


def test_the_upstream_with_the_smallest_share_of_its_permits_in_use_is_chosen():
    choices = Choices(policy("least_loaded"))
    choices.add("small", n_slots=4)
    choices.add("large", n_slots=16)
    choices.occupy(small=2, large=7)

    assert choices.choose() == "large"
    choices.occupy(large=2)
    assert choices.choose() == "small"


def test_an_upstream_of_twice_the_weight_may_be_twice_as_loaded():
    choices = Choices(policy("least_loaded"), 1, 2, n_slots=8)

    choices.occupy(u0=2, u1=3)
    assert choices.choose() == "u1"
    choices.occupy(u1=2)
    assert choices.choose() == "u0"


@pytest.mark.parametrize("name", ["least_loaded", "power_of_two", "round_robin"])
def test_policies_without_a_memory_prefer_no_upstream(name: str):
    choices = Choices(policy(name), 1, 1)
    choices.start("u0", text(500))

    assert choices.prefer(text(500), session="session") is None


# Power of two.


def test_of_two_drawn_upstreams_the_less_loaded_is_chosen():
    choices = Choices(policy("power_of_two"), 1, 1, 1, 1)
    choices.occupy(u0=3, u1=2, u2=1)

    counts = Counter(choices.choose() for _ in range(6000))

    # Of the six pairs the idlest is in three, the next in two more, the third in the last one.
    assert counts["u0"] == 0
    for id, n_pairs in {"u3": 3, "u2": 2, "u1": 1}.items():
        assert counts[id] == pytest.approx(1000 * n_pairs, rel=0.15)


def test_two_different_upstreams_are_drawn_by_every_chance():
    for first in (0.0, 0.34, 0.67, 0.999999):
        for second in (0.0, 0.49, 0.51, 0.999999):
            chances = iter([first, second])
            choices = Choices(make_policy("power_of_two", FakeClock(), lambda drawn=chances: next(drawn)), 1, 1, 1)
            drawn = int(first * 3)
            choices.occupy(**{f"u{drawn}": 1})

            assert choices.choose() != f"u{drawn}"


# Round robin.


def test_turns_are_given_whatever_the_load():
    choices = Choices(policy("round_robin"), 1, 1)
    choices.occupy(u0=3)

    assert Counter(choices.run() for _ in range(10)) == {"u0": 5, "u1": 5}


def test_an_upstream_that_left_and_returns_does_not_wait_for_the_turns_that_it_took_before():
    choices = Choices(policy("round_robin"), 0.01, 1)
    choices.start("u0")
    assert choices.choose() == "u1"

    choices.policy.forget("u0")

    assert choices.choose() == "u0"


# Sticky.


def ranking(choices: Choices, session: str) -> list[str]:
    return sorted((group.host.id for group in choices.groups), key=lambda id: score(f"\0{session}", id), reverse=True)


def test_a_session_prefers_one_upstream_and_falls_back_to_the_next_in_its_ranking():
    for number in range(30):
        choices = Choices(policy("sticky"), 1, 1, 1, 1, n_slots=1)
        session = f"session {number}"
        ranked = ranking(choices, session)

        assert choices.prefer(session=session) == ranked[0]
        for id in ranked:
            assert choices.choose(session=session) == id
            choices.occupy(**{id: 1})


def test_a_session_returns_to_its_upstream_after_a_time_elsewhere():
    choices = Choices(policy("sticky"), 1, 1, 1)
    home, second = ranking(choices, "s")[:2]
    group = next(group for group in choices.groups if group.host.id == home)

    group.host.is_draining = True
    assert choices.prefer(session="s") == second
    group.host.is_draining = False

    assert choices.prefer(session="s") == home


def test_sessions_are_spread_over_all_upstreams_by_their_weights():
    choices = Choices(policy("sticky"), 1, 1, 2)

    counts = Counter(choices.choose(session=f"session {number}") for number in range(4000))

    for id, share in {"u0": 1000, "u1": 1000, "u2": 2000}.items():
        assert counts[id] == pytest.approx(share, rel=0.15)


def test_sessions_of_one_name_of_different_callers_are_spread_too():
    choices = Choices(policy("sticky"), 1, 1, 1)

    assert len({choices.choose(session="s", caller=f"caller {number}") for number in range(50)}) == 3


def test_a_call_without_a_session_goes_to_the_least_loaded_upstream():
    choices = Choices(policy("sticky"), 1, 1, 1)
    choices.occupy(u0=1, u2=1)

    assert choices.prefer() is None
    assert choices.choose() == "u1"


# Prefix-aware.


def test_a_call_prefers_the_upstream_that_has_seen_most_of_its_prompt():
    choices = Choices(policy("prefix"), 1, 1, 1)
    choices.start("u1", text(500))
    choices.start("u2", text(2000))

    assert choices.prefer(text(3000)) == "u2"


def test_a_prompt_of_which_too_little_is_known_prefers_no_upstream():
    choices = Choices(policy("prefix"), 1, 1)
    choices.start("u0", text(192))

    assert choices.prefer(text(900)) is None
    assert choices.prefer(text(700)) == "u0"


def test_an_upstream_that_is_much_busier_than_the_idlest_one_is_not_preferred():
    choices = Choices(policy("prefix"), 1, 1, n_slots=8)
    choices.start("u0", text(1000))

    choices.occupy(u0=4)
    assert choices.prefer(text(1000)) == "u0"
    choices.occupy(u0=1)
    assert choices.prefer(text(1000)) is None
    choices.occupy(u1=1)
    assert choices.prefer(text(1000)) == "u0"


def test_an_upstream_that_takes_no_calls_is_not_preferred_whatever_it_knows():
    choices = Choices(policy("prefix"), 1, 1)
    choices.start("u0", text(1000))
    choices.start("u1", text(600))

    choices.groups[0].host.is_draining = True

    assert choices.prefer(text(1000)) == "u1"


def test_one_that_knows_less_is_preferred_to_one_that_knows_more_but_is_too_busy():
    choices = Choices(policy("prefix"), 1, 1, 1)
    choices.start("u0", text(1000))
    choices.start("u1", text(600))
    choices.occupy(u0=3)

    assert choices.prefer(text(1000)) == "u1"


def test_of_upstreams_that_know_as_much_the_least_loaded_is_preferred():
    choices = Choices(policy("prefix"), 1, 1, 1)
    for id in ("u0", "u1"):
        choices.start(id, text(1000))
    choices.occupy(u0=1)

    assert choices.prefer(text(1000)) == "u1"


def test_without_a_free_permit_of_its_upstream_a_call_goes_to_the_next_that_knows_its_prompt_best():
    choices = Choices(policy("prefix"), 1, 1, 1, n_slots=2)
    choices.start("u0", text(1000))
    choices.start("u2", text(400))
    choices.occupy(u0=2, u1=1, u2=1)

    assert choices.choose(prompt=text(1000)) == "u2"


def test_a_prompt_that_nobody_knows_goes_to_the_least_loaded_upstream():
    choices = Choices(policy("prefix"), 1, 1, 1)
    choices.start("u0", text(1000))
    choices.occupy(u0=1, u2=1)

    assert choices.choose(prompt=text(1000, 1)) == "u1"


def test_what_one_model_has_read_is_not_known_to_another_of_the_same_upstream():
    choices = Choices(policy("prefix"), 1, 1)
    choices.start("u0", text(1000), model="small")

    assert choices.prefer(text(1000), model="large") is None


@pytest.mark.parametrize("prompt", [b"", b"short"])
def test_a_prompt_too_short_to_be_known_prefers_no_upstream(prompt: bytes):
    choices = Choices(policy("prefix"), 1, 1)
    choices.start("u0", prompt)

    assert choices.prefer(prompt) is None


def test_an_upstream_that_left_is_not_thought_to_know_prompts_when_its_id_returns():
    choices = Choices(policy("prefix"), 1, 1)
    choices.start("u0", text(1000))

    choices.policy.forget("u0")

    assert choices.prefer(text(1000)) is None


def test_what_an_upstream_saw_an_hour_ago_is_no_reason_to_prefer_it():
    clock = FakeClock()
    choices = Choices(policy("prefix", clock), 1, 1)
    choices.start("u0", text(1000))

    clock.pass_time(3601)

    assert choices.prefer(text(1000)) is None


# In a dispatcher.


def front_of(name: str, *weights: float, n_slots: int = 1) -> tuple[Front, list[FakeHost]]:
    clock = FakeClock()
    front = Front(clock, Dispatcher(None, clock, clock.make_alarm, lambda: 1.0, policy(name, clock)))
    hosts = [upstream(f"u{number}", weight, n_slots) for number, weight in enumerate(weights)]
    for host in hosts:
        assert front.dispatcher.add_host(host)
    return front, hosts


def ask(front: Front, prompt: bytes = b"", **terms: object) -> None:
    front.dispatcher.submit(InferJob(ModelTarget("chat"), ForwardRequest(prompt=prompt), True, Terms(**terms)))


@pytest.mark.parametrize("name", ["sticky", "prefix"])
def test_a_turn_of_a_conversation_waits_a_little_for_its_upstream_and_then_takes_another(name: str):
    front, hosts = front_of(name, 1, 1, n_slots=2)
    ask(front, text(1000), session="s")
    home = next(host for host in hosts if host.calls)
    ask(front, text(1000), session="s")
    other = next(host for host in hosts if host is not home)
    assert other.permits.try_acquire() is not None

    ask(front, text(1000), session="s")
    front.clock.pass_time(0.19)
    assert (len(home.calls), len(other.calls)) == (2, 0)
    front.clock.pass_time(0.02)

    assert (len(home.calls), len(other.calls)) == (2, 1)


def test_a_stolen_call_of_a_session_goes_to_the_next_of_its_ranking():
    for number in range(10):
        front, hosts = front_of("sticky", 1, 1, 1, 1)
        session = f"session {number}"
        ranked = ranking(Choices(policy("sticky"), 1, 1, 1, 1), session)
        ask(front, session=session)
        ask(front, session=session)

        front.clock.pass_time(0.21)

        assert {host.id for host in hosts if host.calls} == set(ranked[:2])


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_calls_that_wait_start_on_upstreams_that_come(name: str):
    front, hosts = front_of(name, 1)
    for number in range(20):
        ask(front, text(300, number), session=f"{number}")

    hosts += [upstream(f"u{number}") for number in range(1, 4)]
    for host in hosts[1:]:
        assert front.dispatcher.add_host(host)

    assert all(len(host.calls) == host.permits.total for host in hosts)
