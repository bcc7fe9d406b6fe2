"""Responses that call tools of an MCP server, which the official SDK serves, with SmolLM2 and the openai client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import openai
import pytest

from tests.serve.server import Server, servers
from tests.serve.wire import Connection, named_events
from tests.support.mcp_server import ODD, TOKEN, serving_mcp
from tests.support.waiting import eventually

pytestmark = [pytest.mark.model, pytest.mark.slow]

RESPONSES = "/v1/responses"
SECONDS = 10.0  # that the server gives an MCP server
ALWAYS = {"require_approval": "always"}


class Place(NamedTuple):
    server: Server
    port: int  # of the MCP server

    def tool(self, *names: str, **members: Any) -> Any:
        tool = {
            "type": "mcp",
            "server_label": "calc",
            "server_url": f"http://127.0.0.1:{self.port}/mcp",
            "authorization": TOKEN,
            "allowed_tools": names or ["add"],
            "require_approval": "never",
        }
        return {name: value for name, value in {**tool, **members}.items() if value is not None}

    def ask(self, *names: str, calls: str | None = None, **members: Any) -> Any:
        """Makes a request whose model has to call the first tool."""
        return {
            "model": "any",
            "input": "2+3?",
            "tools": [self.tool(*names, **members)],
            "tool_choice": {"type": "mcp", "server_label": "calc", "name": calls or (names or ("add",))[0]},
            "max_output_tokens": 48,
            "temperature": 0,
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("mcp")
    with serving_mcp(folder) as port, servers(folder, cache) as started:
        allowed = f"http://127.0.0.1:{port}/mcp,dead=http://127.0.0.1:1/mcp"
        options: Any = {"mcp_servers": allowed, "mcp_timeout_s": SECONDS}
        yield Place(started.start(model="", ctx=2048, slots=4, threads=1, **options), port)


@pytest.fixture
def client(place: Place) -> Iterator[openai.OpenAI]:
    with place.server.client(timeout=120) as client:
        yield client


@pytest.fixture
def connection(place: Place) -> Iterator[Connection]:
    with place.server.connect(timeout=120) as connection:
        yield connection
        assert connection.ask("GET", "/health").status == 200, "the connection is of no more use"


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


def test_a_call_is_made_and_the_model_goes_on_from_its_output(client: openai.OpenAI, place: Place) -> None:
    first = client.responses.create(**place.ask())

    assert kinds(first) == ["mcp_list_tools", "mcp_call", "message"]
    listed, call, _ = first.output
    assert [tool.name for tool in listed.tools] == ["add"]
    arguments = json.loads(call.arguments)
    assert (call.name, call.server_label, call.status, call.error) == ("add", "calc", "completed", None)
    assert call.output == str(arguments["a"] + arguments["b"])
    assert first.usage is not None
    assert first.usage.output_tokens <= 48, "max_output_tokens is for all rounds together"
    one = client.responses.create(**{**place.ask(**ALWAYS), "store": False}).usage
    assert one is not None
    assert first.usage.input_tokens > 2 * one.input_tokens, "the prompts of both rounds count"

    second = client.responses.create(**{**place.ask(), "tool_choice": "none", "previous_response_id": first.id})

    assert kinds(second) == ["message"], "the tools are in the context, and were listed again"
    kept = client.responses.input_items.list(second.id, order="asc")
    assert [item.type for item in kept.data][:4] == ["message", "mcp_list_tools", "mcp_call", "message"]
    shown = [first.to_json(), client.responses.retrieve(second.id).to_json(), kept.to_json(), place.server.log]
    assert not any(TOKEN in text for text in shown)
    assert '"server_url": "http://127.0.0.1:' in shown[0]
    assert "/mcp" not in shown[0]


def test_a_stream_tells_of_a_call_in_the_order_of_its_work(client: openai.OpenAI, place: Place) -> None:
    with client.responses.create(**place.ask(), stream=True) as stream:
        events: Any = list(stream)
    final = events[-1].response

    assert [event.sequence_number for event in events] == list(range(len(events)))
    steps = [(event.type.removeprefix("response."), getattr(event, "output_index", None)) for event in events]
    in_order = list(dict.fromkeys(steps))
    assert in_order[:12] == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("mcp_list_tools.in_progress", 0),
        ("mcp_list_tools.completed", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("mcp_call.in_progress", 1),
        ("mcp_call_arguments.delta", 1),
        ("mcp_call_arguments.done", 1),
        ("mcp_call.completed", 1),
        ("output_item.done", 1),
    ]
    deltas = [event.delta for event in events if event.type == "response.mcp_call_arguments.delta"]
    assert "".join(deltas) == final.output[1].arguments
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens


def test_a_call_waits_for_approval(client: openai.OpenAI, place: Place) -> None:
    body = {**place.ask(**ALWAYS), "max_tool_calls": 3}
    asked = client.responses.create(**body)
    request = asked.output[1]
    assert (kinds(asked), asked.status) == (["mcp_list_tools", "mcp_approval_request"], "completed")

    def answer(**members: Any) -> dict[str, Any]:
        return {"type": "mcp_approval_response", "approval_request_id": request.id, **members}

    going_on = {**body, "tool_choice": "none"}
    approved = client.responses.create(
        **{**going_on, "previous_response_id": asked.id, "input": [answer(approve=True)]}
    )
    call = approved.output[0]
    assert (call.type, call.status, call.approval_request_id) == ("mcp_call", "completed", request.id)
    assert call.arguments == request.arguments
    assert kinds(approved)[1:] == ["message"]

    items = [{"role": "user", "content": "2+3?"}, *(item.to_dict() for item in asked.output)]
    refused = client.responses.create(**{**going_on, "store": False, "input": [*items, answer(approve=False)]})
    assert kinds(refused) == ["message"]

    done = [*items, answer(approve=True), *(item.to_dict() for item in approved.output)]
    again = client.responses.create(**{**going_on, "store": False, "input": [*done, items[0]]})
    assert kinds(again) == ["message"], "a call that was made is made again"


def test_a_response_in_the_background_adds_its_calls_to_its_conversation(client: openai.OpenAI, place: Place) -> None:
    conversation = client.conversations.create()
    body = {**place.ask(), "conversation": conversation.id}
    begun = client.responses.create(**body, background=True)

    eventually(lambda: client.responses.retrieve(begun.id).status in ("completed", "incomplete"), 60, "it has ended")

    ended = client.responses.retrieve(begun.id)
    items = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.type for item in items] == ["message", *kinds(ended)]
    assert kinds(ended)[:2] == ["mcp_list_tools", "mcp_call"]
    assert kinds(client.responses.create(**{**body, "tool_choice": "none"})) == ["message"]


def test_a_function_of_the_client_ends_the_answer(client: openai.OpenAI, place: Place) -> None:
    function = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
    choice = {"type": "function", "name": "add"}

    response = client.responses.create(**{**place.ask(), "tools": [place.tool(), function], "tool_choice": choice})

    assert kinds(response) == ["mcp_list_tools", "function_call"]


def test_an_odd_name_can_be_called_and_a_failure_is_an_error(client: openai.OpenAI, place: Place) -> None:
    odd = client.responses.create(**place.ask(ODD))
    failed = client.responses.create(**{**place.ask("fail"), "max_tool_calls": 1})

    assert (odd.output[1].name, odd.output[1].output) == (ODD, "odd")
    assert (failed.output[1].status, failed.output[1].output) == ("failed", None)
    assert "Error executing tool fail" in str(failed.output[1].error)
    assert kinds(failed).count("mcp_call") == 1


@pytest.mark.parametrize(("name", "words"), [("hang", "did not answer within 10 s"), ("huge", "1048576")])
def test_a_server_that_misbehaves_fails_the_call_alone(
    client: openai.OpenAI, place: Place, name: str, words: str
) -> None:
    response = client.responses.create(**{**place.ask(name), "max_tool_calls": 1})

    call = response.output[1]
    assert (call.type, call.status) == ("mcp_call", "failed")
    assert words in call.error.message
    assert place.server.health() == "ok"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"server_url": None, "server_label": "dead"}, "cannot be reached"),
        ({"authorization": None}, "status 401"),
        ({"server_url": "http://127.0.0.1:{port}/mcp/away"}, "the tools of 'calc' cannot be used"),
        ({"server_url": "http://127.0.0.1:{port}/mcp/large"}, "larger than 1048576 bytes"),
        ({"allowed_tools": ["unfit"]}, "the schema of 'unfit' is not supported"),
    ],
)
def test_tools_that_cannot_be_had_fail_the_response(
    connection: Connection, place: Place, members: dict[str, Any], words: str
) -> None:
    url = members.get("server_url")
    members = {**members, "server_url": url.format(port=place.port)} if url else members
    body = {**place.ask(**members), "tool_choice": "required"}

    whole = connection.post(body, RESPONSES)
    events = named_events(connection.post({**body, "stream": True}, RESPONSES).body)

    assert (whole.status, whole.json["error"]["code"]) == (424, "mcp_server_failed")
    assert words in whole.json["error"]["message"]
    assert events[-1]["type"] == "response.failed"
    assert words in events[-1]["response"]["error"]["message"]


def test_a_client_that_leaves_ends_the_call(place: Place) -> None:
    def n_hanging() -> int:
        with urlopen(f"http://127.0.0.1:{place.port}/hanging", timeout=30) as answer:
            return int(answer.read())

    eventually(lambda: n_hanging() == 0, 30, "the calls of other tests have ended")
    with (
        place.server.client(timeout=120) as client,
        client.responses.create(**place.ask("hang"), stream=True) as stream,
    ):
        for event in stream:
            if event.type == "response.mcp_call_arguments.done":
                break
        eventually(lambda: n_hanging() == 1, SECONDS, "the call is made")

    eventually(lambda: n_hanging() == 0, SECONDS / 2, "the call is cancelled")
    place.server.wait_idle()


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"server_url": "http://127.0.0.1:2/mcp"}, "tools[0].server_url"),
        ({"server_url": "http://127.0.0.1:{port}/"}, "tools[0].server_url"),
        ({"server_url": "http://127.0.0.1:{port}/mcp/../x"}, "tools[0].server_url"),
        ({"server_url": "http://127.0.0.1:{port}/mcpx"}, "tools[0].server_url"),
        ({"server_url": "http://user:pw@127.0.0.1:{port}/mcp"}, "tools[0].server_url"),
        ({"server_url": "http://localhost:{port}/mcp"}, "tools[0].server_url"),
        ({"server_url": "file:///mcp"}, "tools[0].server_url"),
        ({"server_url": None}, "tools[0].server_url"),
        ({"server_label": None}, "tools[0].server_label"),
        ({"connector_id": "connector_gmail"}, "tools[0].connector_id"),
        ({"headers": {"Host": "x"}}, "tools[0].headers"),
        ({"headers": {"Authorization": "x"}}, "tools[0].authorization"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "tools[0].headers"),
        ({"require_approval": "sometimes"}, "tools[0].require_approval"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(
    connection: Connection, place: Place, members: dict[str, Any], param: str
) -> None:
    url = members.get("server_url")
    members = {**members, "server_url": url.format(port=place.port)} if url else members

    answer = connection.post({**place.ask(**members), "tool_choice": "auto"}, RESPONSES)

    assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_an_approval_needs_its_request_and_its_server(connection: Connection, place: Place) -> None:
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "x", "name": "add", "arguments": "{}"}
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    body = {"model": "any", "tools": [place.tool()]}

    for given in ([answer], [request, answer], [request, answer, answer]):
        refused = connection.post({**body, "input": given}, RESPONSES)
        assert (refused.status, "approval" in refused.json["error"]["message"] or "call" in str(refused.json)) == (
            400,
            True,
        )


def test_no_server_is_allowed_unless_the_operator_says_so(server: Server, place: Place) -> None:
    with server.connect() as connection:
        answer = connection.post({**place.ask(), "tool_choice": "auto"}, RESPONSES)

    assert answer.status == 400
    assert "COROSRV_MCP_SERVERS" in answer.json["error"]["message"]
