"""Clients that lose their connection to a stream and come back to it, in every dialect."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, Answer, Connection, chat, named_events, request
from tests.support.waiting import eventually

LONG = {"max_tokens": 3000}
DIALECTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat(max_tokens=6)),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 6}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 6}),
    ("/v1/messages", chat(max_tokens=6)),
    ("/completion", {"prompt": "hi", "n_predict": 6}),
    ("/v2/models/synthetic/generate_stream", {"text_input": "hi", "parameters": {"max_tokens": 6}}),
]
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_keys = itertools.count()


def new_key() -> str:
    return f"resume-{next(_keys)}"


def ask(server: Server, path: str, body: Any, **headers: str) -> Connection:
    connection = server.connect()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.send(request("POST", path, body, fields))
    return connection


def whole(server: Server, path: str, body: Any, **headers: str) -> Answer:
    with ask(server, path, body, **headers) as connection:
        return connection.answer()


def first_event(connection: Connection) -> bytes:
    """Reads up to the end of the first event that comes."""
    seen = b""
    for piece in connection.body(connection.head()):
        seen += piece
        if _ID.search(seen) and b"\n\n" in seen[_ID.search(seen).end() :]:  # type: ignore[union-attr]
            return seen
    return seen


def cut_behind(events: bytes, number: int) -> bytes:
    """Returns what has come when a client stops behind the event of this number."""
    begin = events.index(b"id: %d\n" % number)
    return events[: events.index(b"\n\n", begin) + 2]


def without_comments(stream: bytes) -> bytes:
    return b"".join(f"{block}\n\n".encode() for block in stream.decode().split("\n\n") if block and block[0] != ":")


@pytest.mark.parametrize(("path", "body"), DIALECTS, ids=[path for path, _ in DIALECTS])
def test_who_drops_its_socket_at_every_event_gets_the_same_bytes(server: Server, path: str, body: Any) -> None:
    key, body = new_key(), {**body, "stream": True} if "text_input" not in body else body
    got, number = b"", 0
    while True:
        after = {"Last_Event_ID": str(number)} if number else {}
        connection = ask(server, path, body, Idempotency_Key=key, **after)
        seen = without_comments(first_event(connection))
        connection.leave()
        numbers = list(map(int, _ID.findall(seen)))
        if not numbers:
            break
        assert numbers == list(range(number + 1, number + 1 + len(numbers)))
        # All but the first event of a piece counts as lost with the connection.
        number += 1
        got += cut_behind(seen, number)

    again = whole(server, path, body, Idempotency_Key=key, Last_Event_ID="0")
    assert number > 3
    assert got == without_comments(again.body)


def test_a_stream_goes_on_without_its_client_and_is_followed_live(server: Server) -> None:
    key, body = new_key(), chat(max_tokens=250, stream=True)  # five seconds
    leaving = ask(server, CHAT, body, Idempotency_Key=key)
    first_event(leaving)
    leaving.leave()
    eventually(lambda: server.metric("open_streams") == 0, what="the client is gone")
    assert server.metric("running") == 1

    answer = whole(server, CHAT, body, Idempotency_Key=key)

    assert answer.headers["idempotency-replayed"] == "true"
    assert [int(number) for number in _ID.findall(answer.body)] == list(range(1, len(_ID.findall(answer.body)) + 1))
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_a_stream_of_which_nobody_asked_it_is_cancelled_when_its_client_leaves(server: Server) -> None:
    cancelled = server.cancelled()
    leaving = ask(server, CHAT, chat(stream=True, **LONG))
    eventually(lambda: server.metric("running") == 1)

    leaving.leave()

    eventually(lambda: server.cancelled() == cancelled + 1)


def test_an_abort_of_its_group_ends_a_stream_that_nobody_reads(server: Server) -> None:
    key = new_key()
    leaving = ask(server, CHAT, chat(stream=True, **LONG), Idempotency_Key=key, X_Group_Id=key)
    first_event(leaving)
    leaving.leave()

    with server.connect() as connection:
        assert connection.ask("DELETE", f"/v1/groups/{key}").status == 200
    server.wait_idle()

    rest = whole(server, CHAT, chat(stream=True, **LONG), Idempotency_Key=key, Last_Event_ID="1")
    assert b"group_aborted" in rest.body


@pytest.fixture(scope="module")
def brief(request: pytest.FixtureRequest) -> Server:
    """Streams wait half a second for their clients, and are kept for three."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(resume_s=0.5, resume_kept_s=3, model="synthetic:?tokens_per_s=1000")


def test_a_client_that_does_not_come_back_has_its_stream_cancelled_and_forgotten(brief: Server) -> None:
    cancelled, worker = brief.cancelled(), brief.worker
    before = worker.n_descriptors()
    leaving = ask(brief, CHAT, chat(stream=True, max_tokens=4000), Idempotency_Key=new_key())
    first_event(leaving)
    leaving.leave()

    eventually(lambda: brief.cancelled() == cancelled + 1)
    eventually(lambda: brief.metric("stream_logs") == brief.metric("stream_log_bytes") == 0)
    brief.wait_idle()
    eventually(lambda: worker.n_descriptors() <= before)


def test_events_that_are_kept_no_longer_are_named(start: Servers) -> None:
    server = start.start(resume_stream_bytes=65_536, model="synthetic:?tokens_per_s=1000")
    key, body = new_key(), chat(stream=True, max_tokens=1500)
    connection = ask(server, CHAT, body, Idempotency_Key=key, X_Conversation_Id=key)
    first_event(connection)
    connection.leave()
    eventually(lambda: server.metric("running") == 0)
    answer = whole(server, CHAT, body, Idempotency_Key=key, Last_Event_ID="1")

    assert (answer.status, answer.error["code"]) == (410, "events_gone")
    first = int(answer.error["message"].split()[-1])
    assert first > 2
    with server.connect() as connection:
        assert connection.ask("GET", f"/v1/stream?conv_id={key}&from=1").status == 410
        connection.ask("DELETE", f"/v1/stream?conv_id={key}")


@pytest.mark.parametrize("number", ["-1", "x", "", "1.5", "9" * 30])
def test_what_is_no_number_of_an_event_is_refused(server: Server, number: str) -> None:
    answer = whole(server, CHAT, chat(stream=True, max_tokens=1), Idempotency_Key=new_key(), Last_Event_ID=number)

    assert (answer.status, answer.error["param"]) == (400, "Last-Event-ID")


def test_a_stream_that_never_was_is_not_found(server: Server) -> None:
    answer = whole(server, CHAT, chat(stream=True, max_tokens=1), Idempotency_Key=new_key(), Last_Event_ID="3")

    assert (answer.status, answer.error["code"]) == (404, "stream_not_found")
    assert server.get("/v1/stream?conv_id=never")[0] == 404
    assert server.get("/v1/stream")[0] == 400


def test_a_number_that_no_event_has_had_yet_is_refused(server: Server) -> None:
    key, body = new_key(), chat(stream=True, max_tokens=3)
    whole(server, CHAT, body, X_Conversation_Id=key)

    with server.connect() as connection:
        answer = connection.ask("GET", f"/v1/stream?conv_id={key}", headers={"Last-Event-ID": "1000"})
        assert answer.status == 400
        assert connection.ask("GET", f"/v1/stream?conv_id={key}&from=100000").status == 400


def test_another_body_under_a_key_is_refused_while_the_first_one_runs(server: Server) -> None:
    key = new_key()
    with ask(server, CHAT, chat(stream=True, max_tokens=100), Idempotency_Key=key) as connection:
        first_event(connection)
        assert whole(server, CHAT, chat("no", stream=True), Idempotency_Key=key, Last_Event_ID="1").status == 422


def test_a_conversation_is_read_on_from_any_byte(server: Server) -> None:
    key = new_key()
    stream = whole(server, CHAT, chat(stream=True, max_tokens=5), X_Conversation_Id=key).body

    with server.connect() as connection:
        for offset in (0, 1, 40, len(stream) - 1, len(stream)):
            answer = connection.ask("GET", f"/v1/stream?conv_id={key}&from={offset}")
            assert (answer.status, answer.body) == (200, stream[offset:])


def test_the_next_turn_of_a_conversation_takes_the_place_of_the_one_that_runs(server: Server) -> None:
    key, cancelled = new_key(), server.cancelled()
    with ask(server, CHAT, chat(stream=True, **LONG), X_Conversation_Id=key) as connection:
        first_event(connection)
        stream = whole(server, CHAT, chat("next", stream=True, max_tokens=3), X_Conversation_Id=key).body
        eventually(lambda: server.cancelled() == cancelled + 1)

    with server.connect() as connection:
        assert connection.ask("GET", f"/v1/stream?conv_id={key}").body == stream


def test_a_conversation_is_stopped_by_its_route(server: Server) -> None:
    key, cancelled = new_key(), server.cancelled()
    leaving = ask(server, CHAT, chat(stream=True, **LONG), X_Conversation_Id=key)
    first_event(leaving)

    with server.connect() as connection:
        assert connection.ask("DELETE", f"/v1/stream?conv_id={key}").status == 204
        eventually(lambda: server.cancelled() == cancelled + 1)
        assert connection.ask("GET", f"/v1/stream?conv_id={key}").status == 404
        assert connection.ask("DELETE", f"/v1/stream?conv_id={key}").status == 204
    leaving.leave()


def test_streams_are_looked_for_by_their_conversations(server: Server) -> None:
    key, began = new_key(), time.time()
    stream = whole(server, CHAT, chat(stream=True, max_tokens=3), X_Conversation_Id=f"{key}::tiny").body
    running = ask(server, CHAT, chat(stream=True, **LONG), X_Conversation_Id=f"{key}-2")
    first_event(running)

    with server.connect() as connection:
        found = connection.post({"conversation_ids": [key, f"{key}-2", "never"]}, "/v1/streams/lookup").json
        connection.ask("DELETE", f"/v1/stream?conv_id={key}-2")
        assert connection.post({"conversation_ids": [f"{key}-2"]}, "/v1/streams/lookup").json == []
        assert connection.post({}, "/v1/streams/lookup").status == 400
        assert connection.ask("GET", f"/v1/stream?conv_id={key}::tiny&from=0").body == stream
    running.leave()

    done, open_one = sorted(found, key=lambda one: str(one["conversation_id"]), reverse=True)
    assert (done["conversation_id"], done["is_done"], done["total_bytes"]) == (f"{key}::tiny", True, len(stream))
    assert int(began) <= done["started_at"] <= done["completed_at"] <= time.time() + 1
    assert (open_one["is_done"], open_one["completed_at"]) == (False, 0)


def test_streams_of_one_api_key_are_not_found_by_another(start: Servers) -> None:
    server = start.start(api_keys="mine,yours")
    body = chat(stream=True, max_tokens=3)
    mine, yours = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer yours"}
    whole(server, CHAT, body, X_Conversation_Id="c", Idempotency_Key="k", **mine)

    with server.connect() as connection:
        assert connection.ask("GET", "/v1/stream?conv_id=c", headers=mine).status == 200
        assert connection.ask("GET", "/v1/stream?conv_id=c", headers=yours).status == 404
        counts = [
            len(connection.post({"conversation_ids": ["c"]}, "/v1/streams/lookup", key).json) for key in (mine, yours)
        ]
        assert counts == [1, 0]
        assert whole(server, CHAT, body, Idempotency_Key="k", Last_Event_ID="1", **yours).status == 404
        connection.ask("DELETE", "/v1/stream?conv_id=c", headers=yours)
        assert connection.ask("GET", "/v1/stream?conv_id=c", headers=mine).status == 200


def test_lines_are_resumed_by_their_count(server: Server) -> None:
    key, body = new_key(), {"model": "synthetic", "prompt": "hi", "options": {"num_predict": 5}}
    first = whole(server, "/api/generate", body, Idempotency_Key=key)

    rest = whole(server, "/api/generate", body, Idempotency_Key=key, Last_Event_ID="2")

    assert rest.body == b"".join(first.body.splitlines(keepends=True)[2:])


def test_switched_off_a_client_that_leaves_is_cancelled(start: Servers) -> None:
    server = start.start(resume_s=0)
    leaving = ask(server, CHAT, chat(stream=True, **LONG), Idempotency_Key="k", X_Conversation_Id="k")
    eventually(lambda: server.metric("running") == 1)

    leaving.leave()

    eventually(lambda: server.cancelled() == 1)
    assert b"id: " not in whole(server, CHAT, chat(stream=True, max_tokens=2), Idempotency_Key="l").body


BACKGROUND: dict[str, Any] = {"input": "hi", "background": True}
RESPONSES = "/v1/responses"


def test_a_background_response_is_asked_for_until_it_is_ready(server: Server) -> None:
    with server.connect() as connection:
        begun = connection.post({**BACKGROUND, "max_output_tokens": 150}, RESPONSES).json
        place = f"{RESPONSES}/{begun['id']}"
        midway = connection.ask("GET", place).json
        eventually(lambda: connection.ask("GET", place).json["status"] == "incomplete")
        whole_stream = named_events(connection.ask("GET", f"{place}?stream=true").body)
        rest = named_events(connection.ask("GET", f"{place}?stream=true&starting_after=3").body)
        stored = connection.ask("GET", place).json

    assert (begun["status"], midway["status"], midway["background"]) == ("in_progress", "in_progress", True)
    assert whole_stream[-1]["response"] == stored
    assert rest == whole_stream[4:]


def test_a_background_response_outlives_the_client_of_its_stream(brief: Server) -> None:
    leaving = ask(brief, RESPONSES, {**BACKGROUND, "stream": True, "max_output_tokens": 1500})
    id = named_events(cut_behind(first_event(leaving), 1))[0]["response"]["id"]
    leaving.leave()

    with brief.connect() as connection:
        eventually(lambda: connection.ask("GET", f"{RESPONSES}/{id}").json["status"] == "incomplete")
        eventually(lambda: connection.ask("GET", f"{RESPONSES}/{id}?stream=true").status == 410)


def test_a_background_response_is_cancelled_by_its_route(server: Server) -> None:
    with server.connect() as connection, server.connect() as stream:
        begun = connection.post({**BACKGROUND, "max_output_tokens": 3000}, RESPONSES).json
        place = f"{RESPONSES}/{begun['id']}"
        stream.send(request("GET", f"{place}?stream=true"))
        cancelled = connection.ask("POST", f"{place}/cancel")
        last = named_events(stream.answer().body)[-1]
        server.wait_idle()

        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
        assert (last["type"], last["response"]) == ("response.cancelled", cancelled.json)
        assert connection.ask("POST", f"{place}/cancel").json == cancelled.json
        assert connection.ask("GET", place).json == cancelled.json
        assert connection.ask("DELETE", place).status == 200
        assert connection.ask("GET", place).status == 404


def test_another_caller_finds_no_background_response(start: Servers) -> None:
    server = start.start(api_keys="mine,yours")
    mine, yours = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer yours"}
    with server.connect() as connection:
        begun = connection.post({**BACKGROUND, "max_output_tokens": 3000}, RESPONSES, mine).json
        place = f"{RESPONSES}/{begun['id']}"
        for method, path in (("GET", place), ("GET", f"{place}?stream=true"), ("POST", f"{place}/cancel")):
            assert connection.ask(method, path, headers=yours).status == 404
        assert connection.ask("DELETE", place, headers=yours).status == 404
        assert connection.ask("DELETE", place, headers=mine).status == 200


def test_a_response_that_had_a_client_cannot_be_cancelled(server: Server) -> None:
    with server.connect() as connection:
        response = connection.post({"input": "hi", "max_output_tokens": 2}, RESPONSES).json

        assert connection.ask("POST", f"{RESPONSES}/{response['id']}/cancel").status == 400
