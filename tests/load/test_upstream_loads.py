"""Short forms of the loads on fronts of upstreams."""

from __future__ import annotations

import pytest

from tests.load import plain_upstream
from tests.load.chats import N_CONNECTIONS, throughput
from tests.load.forwarding_cost import chat_cost, event_cost
from tests.load.permits import SLOTS, loaded_pair
from tests.load.permits import load as overload
from tests.load.upstream_chats import COMMAND, SHORT, first_tokens
from tests.load.upstream_permits import PERMITS, Growth, compare, grow, growth
from tests.load.upstream_servers import corosrv_server, load_front, upstream_servers
from tests.load.upstream_streams import Load, measure
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_streams_through_a_front_all_complete_without_a_thread_more() -> None:
    load = Load(60, plateau=0.5)

    with upstream_servers(load.command()) as servers, load_front(servers, load.n_streams) as front:
        figures = measure(front, load)

    assert (figures.outcome.n_done, figures.outcome.n_failed) == (60, 0)
    assert figures.n_open == 60
    assert figures.loaded.threads == figures.idle.threads


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_queue_answers_as_a_semaphore_does_and_an_added_upstream_takes_its_share() -> None:
    command = corosrv_server(PERMITS)

    with upstream_servers(command, command) as (first, second), load_front([first], PERMITS) as front:
        rates = compare(first, front, 1, 0.5)
        grow(front, second, 0.5)
        shares = [worker["ok"] for worker in front.manage("GET", "/workers")["workers"]]

    assert min(*rates.bare, *rates.front) > 0
    assert min(shares) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_short_chats_through_a_front_are_all_answered() -> None:
    with upstream_servers(COMMAND) as (upstream,), load_front([upstream], N_CONNECTIONS) as front:
        pairs = first_tokens(upstream.port, front.server.address[1], 3)
        figures = throughput(front.server, SHORT, 0.5)
        n_asked = len(pairs) + len(figures.outcome.times)
        eventually(lambda: front.manage("GET", "/workers")["workers"][0]["ok"] == n_asked, what="all went through it")

    assert all(direct > 0 and forwarded > 0 for direct, forwarded in pairs)
    assert figures.outcome.refusals == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fronts_that_share_permits_pass_no_answer_through_redis_and_rest_with_even_parts() -> None:
    upstreams = upstream_servers(*[plain_upstream.command(0.02)] * 2)

    with redis_server() as redis, upstreams as servers, loaded_pair(servers, SLOTS, REDIS_URL=redis.url) as fronts:
        with redis.monitor() as seen:
            rate, _ = overload(fronts, 1.0)
        name = "corosrv_upstream_permits_held"  # of both upstreams
        eventually(lambda: [front.server.metric(name) for front in fronts] == [SLOTS] * 2, what="even parts")

    assert rate > 0
    assert b"evalsha" in seen.lower()
    assert b"Hello." not in seen
    assert b"short answer" not in seen


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_front_pays_for_chats_and_events_is_measured() -> None:
    with upstream_servers(plain_upstream.command(0.02)) as servers, load_front(servers, 8) as front:
        taken = chat_cost(front.server, 2, 0.3), event_cost(front.server, 4, 0.3)

        assert min(taken) > 0
        assert front.server.metric("corosrv_upstream_ttfb_seconds_count") > 4


def test_rates_are_read_from_the_times_at_which_calls_ended() -> None:
    before = [0.1 * number for number in range(100)]  # ten a second, until the tenth second
    after = [12.0 + 0.05 * number for number in range(400)]  # twenty a second, from the twelfth on

    assert growth([*before, *after], added_at=10.0, seconds=5.0, over=30.0) == Growth(10.0, 20.0, pytest.approx(1.9))
