"""Rollouts against real servers: what is yielded, what is lost, and what an abort leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from corosrv.client import Rollout, RolloutGroup, rollout
from tests.serve.fronts import front
from tests.serve.server import Server, Servers
from tests.support.scripted_upstream import Handler, closes, scripted
from tests.support.waiting import eventually

LONG = 4000  # tokens, which take longer than any test


@pytest.fixture(scope="module")
def fast(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=16, model="synthetic:", ctx=1024)


@pytest.fixture(scope="module")
def slow(request: pytest.FixtureRequest) -> Server:
    """Four slots, two hundred tokens a second."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=4, model="synthetic:?tokens_per_s=200", ctx=16384)


def ask(server: Server, prompts: Any, n: int = 2, **options: Any) -> Rollout:
    return rollout(prompts, n, **{"url": f"http://127.0.0.1:{server.port}", "max_tokens": 4, **options})


def check(report: Any, groups: list[RolloutGroup]) -> None:
    """Fails unless every prompt that was submitted ended once, and was yielded at most once."""
    indices = [group.index for group in groups] + [lost.index for lost in report.lost]
    assert sorted(indices) == list(range(report.n_submitted))
    assert report.n_running == 0
    assert report.n_complete == sum(group.is_complete for group in groups)
    assert report.n_complete + report.n_partial == len(groups)


# Whole rollouts.


def test_each_prompt_is_yielded_once_with_its_answers(fast: Server):
    prompts = [f"prompt {number}" for number in range(50)]

    with ask(fast, prompts, 4, concurrency=8) as run:
        groups = list(run)

    check(run.report, groups)
    assert {group.prompt for group in groups} == set(prompts)
    assert all(group.prompt == prompts[group.index] for group in groups)
    assert all(len(group.answers) == 4 and group.is_complete for group in groups)
    assert all(answer.finish == "length" and answer.text for group in groups for answer in group.answers)
    assert all(group.completion_tokens == 16 and group.prompt_tokens > 0 for group in groups)


def test_asyncio_gets_the_same(fast: Server):
    async def collect() -> tuple[list[RolloutGroup], Any]:
        async with ask(fast, map(str, range(20)), concurrency=4) as run:
            return [group async for group in run], run.report

    groups, report = asyncio.run(collect())

    check(report, groups)
    assert report.n_complete == 20


def test_tokens_come_with_their_probabilities_if_asked_for(fast: Server):
    ((answer,),) = [group.answers for group in ask(fast, ["hi"], 1, logprobs=True)]

    assert len(answer.tokens) == 4
    assert all(token.logprob <= 0 for token in answer.tokens)


def test_token_ids_are_continued_as_text(fast: Server):
    ((answer,),) = [group.answers for group in ask(fast, [[5, 6, 7]], 1, path="/v1/completions")]

    assert answer.text


def test_a_split_group_has_the_answers_of_an_unsplit_one(fast: Server):
    unsplit, split = (next(iter(ask(fast, ["hi"], 3, seed=5, temperature=1.0, split=split))) for split in (False, True))

    assert split.is_complete
    assert len(split.answers) == len(unsplit.answers) == 3
    assert split.completion_tokens == 12


def test_no_more_groups_run_than_may_and_no_more_prompts_are_taken_than_have_room():
    n_taken = 0

    def prompts() -> Iterator[str]:
        nonlocal n_taken
        while True:
            n_taken += 1
            yield "hi"

    with scripted(answers()) as upstream, rollout(prompts(), url=upstream.url, concurrency=3) as run:
        groups = iter(run)
        next(groups)
        report = run.report
        eventually(lambda: (run.report.n_submitted, run.report.n_running) == (7, 0), what=f"seven ends, not {report}")

        assert upstream.most_running <= 3
        assert n_taken == run.report.n_submitted == 7  # the one that was taken, and six that wait
    check_counts(run)


def check_counts(run: Rollout) -> None:
    report = run.report
    assert report.n_submitted == report.n_complete + report.n_partial + report.n_lost
    assert report.n_running == 0


def answers(status: int = 200, **headers: str) -> Any:
    """Answers one choice for each that is asked for, or in an error."""

    def behave(handler: Handler) -> None:
        choice = {"index": 0, "message": {"content": "text"}, "finish_reason": "stop"}
        body = json.loads(handler.body)
        if status == 200:
            handler.answer(200, {"choices": [{**choice, "index": i} for i in range(body.get("n", 1))]})
        else:
            handler.answer(status, {"error": {"message": "as the test says"}}, **headers)

    return behave


def test_a_loop_that_is_left_early_ends_what_runs(slow: Server):
    for group in ask(slow, ["short", *["long"] * 3], 1, concurrency=4):
        assert group.is_complete
        break

    slow.wait_idle()


def test_what_iterating_over_the_prompts_raises_is_raised(fast: Server):
    def prompts() -> Iterator[str]:
        yield "hi"
        raise LookupError("no more data")

    with pytest.raises(LookupError, match="no more data"):
        list(ask(fast, prompts()))


# Aborts.


def wait_text(server: Server, n: int) -> None:
    eventually(lambda: server.metric("running") == n, 20, f"{n} running")
    generated = server.metric("generated_tokens_total")
    eventually(lambda: server.metric("generated_tokens_total") > generated + 10 * n, 20, "tokens")


def test_an_abort_with_partial_yields_what_there_is(slow: Server):
    with ask(slow, ["hi"] * 50, 2, max_tokens=LONG, concurrency=2) as run:
        aborting = threading.Thread(target=lambda: (wait_text(slow, 4), run.abort(partial=True)))
        aborting.start()
        groups = list(run)
        aborting.join(20)

    check(run.report, groups)
    assert (len(groups), run.report.n_partial) == (2, 2)
    assert all(answer.finish == "cancelled" and answer.text for group in groups for answer in group.answers)
    slow.wait_idle()


def test_an_abort_loses_what_runs_and_ends_it_at_the_server(slow: Server):
    with ask(slow, ["hi"] * 50, 2, max_tokens=LONG, concurrency=2) as run:
        aborting = threading.Thread(target=lambda: (wait_text(slow, 4), run.abort()))
        aborting.start()
        groups = list(run)
        aborting.join(20)

    check(run.report, groups)
    assert (groups, [lost.reason for lost in run.report.lost]) == ([], ["aborted", "aborted"])
    slow.wait_idle()


def test_an_abort_keeps_what_is_complete_and_leaves_the_other_prompts_alone(slow: Server):
    prompts = iter([{"messages": HI, "max_tokens": tokens} for tokens in (2, LONG, LONG, LONG)])
    groups = []
    with ask(slow, prompts, 1, concurrency=2) as run:
        for group in run:
            groups.append(group)
            run.abort(partial=True)

    check(run.report, groups)
    assert groups[0].is_complete
    assert 1 <= len(list(prompts)) <= 2


HI = [{"role": "user", "content": "hi"}]


def test_an_abort_gives_up_partial_answers_that_do_not_come_in_time():
    release = threading.Event()

    def stall(handler: Handler) -> None:
        release.wait(30)

    with scripted(stall) as upstream:
        with rollout(["hi"], url=upstream.url, grace=0.2) as run:
            aborting = threading.Thread(
                target=lambda: (eventually(lambda: upstream.n_running == 1), run.abort(partial=True))
            )
            aborting.start()
            groups = list(run)
            aborting.join(20)
        release.set()

    check(run.report, groups)
    assert run.report.lost[0].reason == "aborted"


# Faults.


@pytest.mark.parametrize("status", [500, 502, 503])
def test_what_fails_for_now_is_asked_again_under_the_same_key(status: int):
    with scripted(answers(status)) as upstream:

        def second_goes_well(handler: Handler) -> None:
            upstream.behaviour = answers()
            answers(status)(handler)

        upstream.behaviour = second_goes_well
        with rollout(["hi"], url=upstream.url) as run:
            (group,) = run

    assert (group.n_attempts, run.report.n_retries, group.is_complete) == (2, 1, True)
    first, second = (headers["Idempotency-Key"] for _, headers, _ in upstream.requests)
    assert first == second


def test_a_connection_that_is_lost_is_made_again():
    with scripted(closes) as upstream:

        def second_goes_well(handler: Handler) -> None:
            upstream.behaviour = answers()
            closes(handler)

        upstream.behaviour = second_goes_well
        with rollout(["hi"], url=upstream.url) as run:
            groups = list(run)

    check(run.report, groups)
    assert run.report.retry_reasons == {"the connection was lost": 1}


def test_what_is_refused_is_lost_with_its_reason_and_not_asked_again():
    with scripted(answers(400)) as upstream, rollout(["hi"], url=upstream.url) as run:
        groups = list(run)

    check(run.report, groups)
    assert run.report.lost[0].reason == "400 as the test says"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("answer", [{}, {"choices": None}, {"choices": [1]}, [], "text"])
def test_an_answer_that_is_none_is_lost(answer: Any):
    with (
        scripted(lambda handler: handler.answer(200, answer)) as upstream,
        rollout(["hi"], url=upstream.url) as run,
    ):
        groups = list(run)

    check(run.report, groups)
    assert run.report.n_lost == 1


def test_where_nobody_listens_every_group_is_lost_once():
    with scripted() as upstream:
        upstream.stop_listening()
        with rollout(["a", "b"], url=upstream.url, retries=1) as run:
            groups = list(run)

    check(run.report, groups)
    assert [lost.prompt for lost in sorted(run.report.lost, key=lambda lost: lost.index)] == ["a", "b"]
    assert "no connection" in run.report.lost[0].reason


def test_a_server_that_is_stopped_in_the_middle_loses_no_group_in_silence(start: Servers):
    server = start.start(slots=4, model="synthetic:?tokens_per_s=200", ctx=1024)
    groups = []
    with ask(server, ["hi"] * 200, 2, max_tokens=20, concurrency=8, retries=1) as run:
        for group in run:
            groups.append(group)
            if len(groups) == 3:
                server.stop()

    check(run.report, groups)
    assert run.report.n_submitted == 200
    assert run.report.n_lost >= 1


def test_an_upstream_that_is_killed_in_the_middle_costs_retries_and_no_group(slow: Server, start: Servers):
    victim = start.start(slots=4, model="synthetic:?tokens_per_s=100", ctx=1024)
    urls = [f"http://127.0.0.1:{server.port}?concurrency=4" for server in (victim, slow)]
    groups = []
    with (
        front(start, *urls) as forwarding,
        ask(forwarding.server, ["hi"] * 40, 2, max_tokens=20, concurrency=8, retries=10) as run,
    ):
        for number in range(2):
            forwarding.wait_state("ready", number)
        for group in run:
            groups.append(group)
            if len(groups) == 4:
                os.killpg(victim.pid, signal.SIGKILL)

    check(run.report, groups)
    assert len(groups) == 40
    assert run.report.n_lost == 0


# What it needs.


def test_the_client_loads_no_framework_no_hub_and_no_native_core():
    heavy = (
        "flask",
        "gevent",
        "gunicorn",
        "werkzeug",
        "msgspec",
        "urllib3",
        "corosrv._native",
        "corosrv.models.engine",
    )
    program = f"import sys, corosrv.client; print(*sorted(set({heavy}) & set(sys.modules)))"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert not loaded.stdout.split()
