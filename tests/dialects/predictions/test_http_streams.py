"""Event streams over real HTTP, from a real predictor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.serve.wire import Connection, request
from tests.support.predictors import ASYNC, PREDICTIONS, STREAM, PredictorServer, parse_events, serving_predictor
from tests.support.waiting import eventually

NAMES = ["start", "log", "output", "output", "output", "metric", "completed"]


@pytest.fixture(autouse=True)
def idle(streams: PredictorServer) -> Iterator[None]:
    yield
    streams.wait_idle()


def follow(server: PredictorServer, id: str, last_event: int | None = None, **input: Any) -> Connection:
    """A connection on which the events of a prediction come in; `input` is its own, which matters once it has ended."""
    connection = server.connect()
    after = {} if last_event is None else {"Last-Event-ID": str(last_event)}
    connection.send(request("PUT", f"{PREDICTIONS}/{id}", {"input": input}, STREAM | after))
    answer = connection.head()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    return connection


def rest(connection: Connection) -> list[dict[str, Any]]:
    """All events up to the proper end of the stream."""
    with connection:
        return parse_events(b"".join(connection.pieces()))


def read_until(connection: Connection, word: bytes) -> bytes:
    seen = b""
    for piece in connection.pieces():
        seen += piece
        if word in seen:
            return seen
    raise AssertionError(f"the stream ended before {word!r}")


def first_event(connection: Connection) -> dict[str, Any]:
    seen = b""
    for piece in connection.pieces():
        seen += piece
        if events := parse_events(seen[: seen.rfind(b"\n\n") + 2]):  # a comment may come before it
            return events[0]
    raise AssertionError("the stream ended before its next event")


def ids(events: list[dict[str, Any]]) -> list[int]:
    return [event["id"] for event in events]


def test_a_stream_tells_everything_in_its_order(streams: PredictorServer):
    answer = streams.predict({}, STREAM)

    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    found = parse_events(answer.body)
    assert [event["event"] for event in found] == NAMES
    assert ids(found) == [1, 2, 3, 4, 5, 6, 7]
    assert found[0]["data"]["status"] == "processing"
    assert found[2]["data"] == {"chunk": "number 0", "index": 0}
    last = found[-1]["data"]
    assert (last["status"], last["output"]) == ("succeeded", ["number 0", "number 1", "number 2"])
    assert last | {"input": streams.get(last["id"]).json["input"]} == streams.get(last["id"]).json


def test_a_chunk_is_sent_before_the_next_is_asked_for(streams: PredictorServer):
    gate = streams.gate("live")
    connection = streams.begin({"gate": str(gate)}, STREAM)
    connection.head()

    seen = read_until(connection, b'"index":0}\n\n')
    assert b'"index":1' not in seen
    gate.open()

    assert [event["event"] for event in rest(connection)] == NAMES[3:]


def test_a_failure_keeps_what_was_sent_before(streams: PredictorServer):
    last = parse_events(streams.predict({"fails": True, "n": 2}, STREAM).body)[-1]["data"]

    assert (last["status"], last["output"], last["error"]) == (
        "failed",
        ["number 0", "number 1"],
        "ValueError: miscounted",
    )


def test_no_output_and_one_are_lists(streams: PredictorServer):
    assert streams.predict({"n": 0}).json["output"] == []
    assert streams.predict({"n": 1}).json["output"] == ["number 0"]


def test_a_stream_wins_over_an_answer_at_once(streams: PredictorServer):
    assert streams.predict({}, STREAM | ASYNC).headers["content-type"] == "text/event-stream"


def test_json_that_is_liked_better_wins_over_a_stream(streams: PredictorServer):
    answer = streams.predict({}, {"Accept": "text/event-stream;q=0.5, application/json"})

    assert answer.json["status"] == "succeeded"


def test_who_comes_later_gets_everything_once(streams: PredictorServer):
    gate = streams.gate("late")
    streams.put("late", {"gate": str(gate)}, ASYNC)
    eventually(lambda: streams.get("late").json.get("output"))

    connection = follow(streams, "late")
    read_until(connection, b'"index":0}\n\n')
    gate.open()

    assert ids(rest(connection)) == [4, 5, 6, 7]


def test_who_was_cut_off_goes_on_behind_what_it_has(streams: PredictorServer):
    streams.put("cut", {}, ASYNC)
    streams.wait_for("cut", "succeeded")

    assert ids(rest(follow(streams, "cut", last_event=4))) == [5, 6, 7]
    assert ids(rest(follow(streams, "cut", last_event=7))) == []


def test_a_finished_prediction_is_replayed(streams: PredictorServer):
    first = parse_events(streams.put("replayed", {}, STREAM).body)

    assert rest(follow(streams, "replayed")) == first


def test_a_replay_with_another_input_is_refused_in_json(streams: PredictorServer):
    streams.put("other", {})

    answer = streams.put("other", {"n": 1}, STREAM)

    assert (answer.status, answer.headers["content-type"]) == (409, "application/json")


def test_an_input_that_is_invalid_is_refused_in_json(streams: PredictorServer):
    answer = streams.predict({"n": "many"}, STREAM)

    assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["body", "input", "n"])


def test_silence_is_filled_with_comments(streams: PredictorServer):
    gate = streams.gate("silent")
    connection = streams.begin({"gate": str(gate)}, STREAM)
    connection.head()

    read_until(connection, b"\n\n:\n\n:\n\n")
    gate.open()

    assert rest(connection)[-1]["event"] == "completed"


@pytest.mark.parametrize("resume_s", [0, 0.2])
def test_a_client_that_leaves_its_stream_and_stays_away_cancels_it(tmp_path: Path, resume_s: float):
    with serving_predictor(tmp_path, "streams.py:Predictor", resume_s=resume_s) as streams:
        connection = streams.begin({"gate": str(streams.gate("never"))}, STREAM, id="abandoned")
        connection.head()
        read_until(connection, b'"index":0}\n\n')

        connection.leave()

        assert streams.wait_for("abandoned", "canceled")["output"] == ["number 0"]


def test_a_client_that_drops_its_socket_at_every_event_gets_all_of_them(streams: PredictorServer):
    expected = parse_events(streams.put("whole", {}, STREAM).body)
    seen: list[dict[str, Any]] = []
    connection = streams.begin({}, STREAM, id="dropped")
    connection.head()
    while True:
        seen.append(first_event(connection))
        connection.leave()
        if seen[-1]["event"] == "completed":
            break
        connection = follow(streams, "dropped", last_event=len(seen))

    assert [(event["id"], event["event"]) for event in seen] == [(event["id"], event["event"]) for event in expected]
    assert seen[-1]["data"]["output"] == expected[-1]["data"]["output"]


def test_a_client_that_comes_back_in_time_keeps_its_prediction(tmp_path: Path):
    with serving_predictor(tmp_path, "streams.py:Predictor", resume_s=3) as streams:
        gate = streams.gate("back")
        connection = streams.begin({"gate": str(gate)}, STREAM, id="back")
        connection.head()
        read_until(connection, b'"index":0}\n\n')
        connection.leave()
        back = follow(streams, "back", last_event=3)
        time.sleep(3.5)  # longer than it would have run on by itself
        gate.open()

        assert rest(back)[-1]["data"]["status"] == "succeeded"


def test_a_stream_goes_on_while_somebody_else_reads_it(streams: PredictorServer):
    gate = streams.gate("shared")
    first = streams.begin({"gate": str(gate)}, STREAM, id="shared")
    first.head()
    read_until(first, b'"index":0}\n\n')
    second = follow(streams, "shared")

    first.leave()
    time.sleep(0.1)  # long enough for a cancel that must not come
    gate.open()

    assert rest(second)[-1]["data"]["status"] == "succeeded"


def test_a_reader_of_an_unattended_prediction_may_leave(streams: PredictorServer):
    gate = streams.gate("free")
    streams.put("free", {"gate": str(gate)}, ASYNC)
    connection = follow(streams, "free")
    read_until(connection, b'"index":0}\n\n')

    connection.leave()
    time.sleep(0.1)  # long enough for a cancel that must not come
    gate.open()

    streams.wait_for("free", "succeeded")


def test_a_canceled_stream_ends_with_what_it_had(streams: PredictorServer):
    connection = streams.begin({"gate": str(streams.gate("never"))}, STREAM, id="stopped")
    connection.head()
    read_until(connection, b'"index":0}\n\n')

    streams.cancel("stopped")

    last = rest(connection)[-1]
    assert (last["event"], last["data"]["status"]) == ("completed", "canceled")


def test_who_comes_too_late_for_all_events_is_told_so(tmp_path: Path):
    with serving_predictor(tmp_path, "streams.py:Predictor", stream_history=4) as server:
        server.put("long", {"n": 20}, ASYNC)
        server.wait_for("long", "succeeded")

        (lost,) = rest(follow(server, "long", n=20))
        kept = rest(follow(server, "long", last_event=20, n=20))
        (gone,) = rest(follow(server, "long", last_event=19, n=20))

    assert (lost["event"], lost["id"], lost["data"]["skipped"]) == ("error", None, 20)
    assert "truncated" in lost["data"]["error"]
    assert ids(kept) == [21, 22, 23, 24]
    assert gone["data"]["skipped"] == 1


def test_a_thousand_readers_do_not_slow_a_prediction(tmp_path: Path):
    n_readers, n_outputs, gap = 1000, 20, 0.05
    with serving_predictor(tmp_path, "streams.py:Predictor") as server, ExitStack() as stack:
        gate = server.gate("crowd")
        server.put("crowd", {"n": n_outputs, "seconds": gap, "gate": str(gate)}, ASYNC)
        readers = [stack.enter_context(follow(server, "crowd")) for _ in range(n_readers)]

        gate.open()
        shown = server.wait_for("crowd", "succeeded")
        streams = [parse_events(b"".join(reader.pieces())) for reader in readers]

    n_events = n_outputs + len(["start", "log", "metric", "metric", "completed"])
    assert all(ids(events) == list(range(1, n_events + 1)) for events in streams)
    assert shown["metrics"]["seconds"] < n_outputs * gap * 10  # with no pause for each of the readers
