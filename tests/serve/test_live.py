"""GET /v1/live: what frames say of a running server, who may watch, and what becomes of who does not read."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.serve.server import REPOSITORY, SERVE, Server, Servers
from tests.serve.wire import CHAT, Connection, chat, request
from tests.support.waiting import eventually

SECRET = "xylophone"
ENGINE = {
    "model", "n_slots", "running", "waiting", "paused", "readers", "polled", "wakes", "preempted", "steps", "written",
    "ended", "cache", "slots", "recent",
}  # fmt: skip


@pytest.fixture(scope="module")
def four(request: pytest.FixtureRequest) -> Server:
    """Four slots, fifty tokens a second each; a client may accept nothing for a second."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=4, model="synthetic:?tokens_per_s=50&prefill_tokens_per_s=2000", write_timeout_s=1)


def frame(server: Server) -> dict[str, Any]:
    status, found = server.get("/v1/live?frames=1")
    assert status == 200, found
    return dict(found)


def engine(server: Server) -> dict[str, Any]:
    (found,) = frame(server)["engines"]
    return dict(found)


def states(server: Server) -> list[str]:
    return sorted(slot["state"] for slot in engine(server)["slots"])


@contextmanager
def streams(server: Server, n: int, words: str = "hi", **fields: Any) -> Iterator[None]:
    """Streams that are open, and of which the first bytes have come."""
    with ExitStack() as stack:
        for _ in range(n):
            connection = stack.enter_context(server.connect())
            connection.send(request("POST", CHAT, chat(words, stream=True, **fields)))
            assert connection.head().status == 200
        yield
    eventually(lambda: frame(server)["http"]["streams"] == 0, what="the end of all streams")


@contextmanager
def watching(server: Server, **options: Any) -> Iterator[Connection]:
    with server.connect(**options) as connection:
        connection.send(request("GET", "/v1/live"))
        answer = connection.head()
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield connection


def frames_of(connection: Connection) -> Iterator[dict[str, Any]]:
    for piece in connection.pieces():
        if piece.startswith(b"data: "):
            yield json.loads(piece.removeprefix(b"data: "))


def test_a_frame_tells_of_an_idle_server_what_it_has_and_nothing_else(four: Server) -> None:
    found = frame(four)

    assert set(found) == {"time", "state", "hub", "http", "models", "engines"}
    assert found["state"] == "ready"
    assert found["models"] == [{"id": "synthetic", "state": "loaded"}]
    assert set(found["engines"][0]) == ENGINE
    assert found["engines"][0]["slots"] == [{"state": "idle"}] * 4
    assert abs(found["time"] - time.time()) < 30


def test_slots_and_steps_are_those_of_the_streams_that_run(four: Server) -> None:
    with streams(four, 2):
        eventually(lambda: states(four) == ["decoding", "decoding", "idle", "idle"])
        found = frame(four)

    (shown,) = found["engines"]
    recent = shown["recent"]
    assert (shown["running"], shown["waiting"], found["http"]["streams"]) == (2, 0, 2)
    assert recent["steps"] > 0
    assert recent["decoding"] == pytest.approx(2 * recent["steps"], abs=2)  # a row for each of two streams
    assert recent["reading"] == 0
    assert 0.01 < recent["itl"] < 0.2  # 0.02, and more where other programs have the processor
    assert found["http"]["greenlets"] == found["http"]["connections"] == 3  # who asks is one of them


def test_a_prompt_that_is_read_shows_how_far_it_is(four: Server) -> None:
    with four.connect() as connection:
        connection.send(request("POST", CHAT, chat("a " * 1500, stream=True)))
        eventually(lambda: "reading" in states(four))
        slot = next(slot for slot in engine(four)["slots"] if slot["state"] != "idle")

    four.wait_idle()
    assert slot["prompt"] > 1500
    assert 0 < slot["read"] <= slot["prompt"]


def test_what_waits_for_a_slot_is_counted(four: Server) -> None:
    with streams(four, 4), four.connect() as fifth:
        fifth.send(request("POST", CHAT, chat(stream=True)))

        eventually(lambda: engine(four)["waiting"] == 1)


@pytest.mark.model
def test_prompts_that_are_known_already_count_as_hits(real: Server) -> None:
    before = engine(real)["cache"]["hits"]
    with real.connect() as connection:
        for _ in range(2):
            connection.post(chat("the same words again and again " * 20, max_tokens=2))

    assert engine(real)["cache"]["hits"] > before


def test_a_slot_whose_reader_is_not_read_is_paused(start: Servers) -> None:
    server = start.start(
        slots=2, model="synthetic:?tokens_per_s=0", ctx=1_000_000, reader_bytes=1024, write_timeout_s=60
    )
    with server.connect(receive_buffer=4096) as unread:
        unread.send(request("POST", CHAT, chat(stream=True)))
        # Now and then it goes on, until the system takes nothing more for the client.
        eventually(lambda: "paused" in states(server) or not server.metric("running"), what="a pause")
        if server.metric("running") == 0:
            pytest.skip("who is paused has given its slot back")


def test_nothing_of_a_prompt_or_an_answer_is_in_a_frame(four: Server) -> None:
    with streams(four, 1, f"{SECRET} " * 20, user=SECRET), four.connect() as connection:
        eventually(lambda: "decoding" in states(four))
        answer = connection.ask("GET", "/v1/live?frames=1")

    assert SECRET.encode() not in answer.body


def test_a_watcher_gets_at_most_four_frames_a_second(four: Server) -> None:
    with watching(four) as connection:
        times = [shown["time"] for _, shown in zip(range(9), frames_of(connection), strict=False)]

    assert times[-1] - times[0] > 1.9  # two seconds, less what the first was late


def test_all_watchers_get_the_same_frame(four: Server) -> None:
    with watching(four) as one, watching(four) as two:
        twos = [next(frames_of(two))["time"] for _ in range(4)]
        frames = (shown["time"] for shown in frames_of(one))  # the first of which may have come long before
        ones = {*itertools.takewhile(lambda time: time < twos[-1], frames), twos[-1]}

    assert len(ones & set(twos[:-1])) >= 2


def test_a_watcher_that_stalls_is_dropped(four: Server) -> None:
    with watching(four) as reads, watching(four, receive_buffer=1024):
        frames = frames_of(reads)
        assert any(shown["http"]["watchers"] == 2 for _, shown in zip(range(20), frames, strict=False))
        # What the system holds for the other one is full after some frames; a second later it is gone.
        assert any(shown["http"]["watchers"] == 1 for _, shown in zip(range(600), frames, strict=False))


def test_a_watcher_that_leaves_is_forgotten(four: Server) -> None:
    with watching(four) as stays:
        with watching(four):
            pass

        assert any(shown["http"]["watchers"] == 1 for _, shown in zip(range(40), frames_of(stays), strict=False))


def test_a_number_of_frames_that_there_is_not_is_refused_by_name(four: Server) -> None:
    status, found = four.get("/v1/live?frames=7")

    assert (status, found["error"]["param"]) == (400, "frames")


def test_a_head_of_the_stream_watches_nothing(four: Server) -> None:
    with four.connect() as connection:
        assert connection.ask("HEAD", "/v1/live").status == 200

    assert frame(four)["http"]["watchers"] == 0


def test_keys_decide_who_may_watch(start: Servers) -> None:
    server = start.start(api_keys="first-key", slots_endpoint=0)
    with server.connect() as connection:
        refused = connection.ask("GET", "/v1/live?frames=1")
        shown = connection.ask("GET", "/v1/live?frames=1", headers={"Authorization": "Bearer first-key"})

    assert refused.status == 401
    assert shown.status == 200
    assert "slots" not in shown.json["engines"][0]  # as /slots is switched off


def test_without_metrics_there_is_no_live_picture(start: Servers) -> None:
    status, found = start.start(metrics=0).get("/v1/live")

    assert status == 501
    assert "COROSRV_METRICS=0" in found["error"]["message"]


def test_a_server_that_stops_waits_for_no_watcher(start: Servers) -> None:
    server = start.start()
    with watching(server) as connection:
        next(frames_of(connection))
        server.signal(15)

        assert server.wait() == 0  # long before it would give a stream up


def test_handlers_and_their_pools_are_shown(start: Servers) -> None:
    server = start.start(*SERVE, f"{REPOSITORY}/deploy/app/basic.py:app", model="", wait_for="ok")
    found = frame(server)

    assert "engines" not in found
    assert {queue["of"] for queue in found["queues"]} == {"handlers"}
    assert all(queue["depth"] == 0 and queue["classes"] == {} for queue in found["queues"])
    assert all(pool["workers"].get("ready") == 1 for pool in found["pools"])
    assert any("counter" in queue["key"] for queue in found["queues"])


def test_upstreams_are_shown_with_what_they_run(start: Servers) -> None:
    upstream = start.start(slots=1, model="small=synthetic:?tokens_per_s=50")
    server = start.start(upstream=f"http://127.0.0.1:{upstream.port}?concurrency=1", model="")

    with streams(server, 1, model="small"), server.connect() as second:
        second.send(request("POST", CHAT, chat(stream=True, model="small"), {"X-Priority": "3"}))
        found = eventually(lambda: (shown := frame(server))["queues"][0]["depth"] and shown)

    (shown,) = found["upstreams"]
    assert (shown["state"], shown["in_flight"], shown["concurrency"]) == ("ready", 1, 1)
    assert found["queues"][0]["classes"] == {"3": 1}
    assert found["queues"][0]["oldest"] >= 0


def test_the_document_describes_a_frame(four: Server) -> None:
    _, document = four.get("/openapi.json")

    answers = document["paths"]["/v1/live"]["get"]["responses"]["200"]["content"]
    assert set(answers) == {"application/json", "text/event-stream"}
    assert set(document["components"]["schemas"]["LiveEngine"]["properties"]) == ENGINE
