"""Bodies to conversations: items, tools, formats, what is refused by name, and what is gone on from."""

import json
from typing import Any

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import CorosrvError, NotFound, NotSupported, Refused
from corosrv.contracts.jobs import Chunk, Finish, Job, Messages, ModelCard
from corosrv.contracts.jobs.terms import LAST_PRIORITY
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation, JsonFormat
from corosrv.dialects.chat.prepare import TextParser
from corosrv.dialects.openai.responses import items, parse, schema
from corosrv.dialects.openai.responses.store import ResponseStore, Shelf, Stored
from corosrv.web.http import body_reader
from tests.support.answers import as_json, complete_json, empty_response
from tests.support.vocabularies import ByteVocabulary

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
CARD = ModelCard("tiny", created=1, capabilities=frozenset({"tools"}))
LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True}
ROOM = {"type": "namespace", "name": "room", "description": "Of the room.", "tools": [LOOK]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
HELLO = [Chunk(0, "Hello", 1), Chunk(0, "", 1, Finish.STOP)]
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "a wall"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A body's conversation, as it is handed on."""
    seen: list[Conversation] = []

    def prepare(conversation: Conversation, card: ModelCard, **more: object) -> tuple[Job, TextParser]:
        seen.append(conversation)
        return conversation.job, TextParser()

    monkeypatch.setattr(parse, "prepare", prepare)

    def ask(sent: Any = "Hi", shelf: Shelf | None = None, **fields: Any) -> Conversation:
        call({"input": sent, **fields}, shelf)
        return seen[-1]

    return ask


def call(sent: dict[str, Any], shelf: Shelf | None = None) -> Any:
    """From the body's bytes to the call, as the routes do it."""
    raw = json.dumps(sent).encode()
    fields = body_reader.decode(REQUEST, raw, schema.decoder)
    return parse.call(fields, CARD, shelf or ResponseStore(0).shelf(""), ByteVocabulary)


def turns(conversation: Conversation) -> list[dict[str, Any]]:
    (prompt,) = conversation.job.prompts
    assert isinstance(prompt, Messages)
    return list(prompt.messages)


def test_a_string_is_what_the_user_says(asked):
    assert turns(asked("Hi")) == [{"role": "user", "content": "Hi"}]


def test_instructions_come_first(asked):
    assert turns(asked("Hi", instructions="Be brief."))[0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("item", "turn"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        ({"type": "message", "role": "system", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a"}),
        (
            {"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
            {"role": "user", "content": "a\nb"},
        ),
        (
            {
                "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
            },
            {"role": "assistant", "content": "a"},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
    ],
)  # fmt: skip
def test_a_message_is_a_turn(asked, item, turn):
    assert turns(asked([item])) == [turn]


def test_thoughts_calls_and_what_they_gave_are_turns(asked):
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    parts = {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "a door"}]}

    found = turns(asked([{"role": "user", "content": "?"}, reasoning, CALL, {**CALL, "call_id": "c2"}, OUTPUT, parts]))

    function = {"name": "look", "arguments": {"at": 1}}
    assert found[1:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": id, "type": "function", "function": function} for id in ("c1", "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "a wall"},
        {"role": "tool", "tool_call_id": "c2", "name": "look", "content": "a door"},
    ]


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ([], "input"),
        (["x"], "input[0]"),
        ([{"role": "user"}], "input[0].content"),
        ([{"content": "x"}], "input[0].role"),
        ([{"role": "pirate", "content": "x"}], "input[0].role"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_text", "text": 5}]}], "input[0].content[0].text"),
        ([{"type": "item_reference"}], "input[0].id"),
        ([{"type": 5}], "input[0].type"),
        ([{"type": "function_call", "call_id": "x", "name": "y"}], "input[0].arguments"),
        ([{**CALL, "arguments": 5}], "input[0].arguments"),
        ([OUTPUT], "input[0].call_id"),
        ([CALL, {**OUTPUT, "output": 5}], "input[1].output"),
        ([{"role": "user", "content": "x"}] * 2049, "input"),
        ([{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 2049}], "input[0].content"),
        ([CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "x"}] * 2049}], "input[1].output"),
    ],
)
def test_an_item_that_cannot_be_read_is_refused_with_its_place(asked, sent, param):
    with pytest.raises(Refused) as refused:
        asked(sent)

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("include", ["reasoning.encrypted_content", "message.output_text.likelihoods"]),
        ("prompt", {"id": "pmpt_1"}),
        ("stream_options", {"include_obfuscation": True}),
        ("context_management", [{"type": "compaction"}]),
    ],
)
def test_what_is_not_offered_is_refused_by_name(asked, name, value):
    with pytest.raises(NotSupported, match=name) as refused:
        asked(**{name: value})

    assert refused.value.param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1.5}, "max_output_tokens"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"reasoning": {"effort": "endless"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "rhymed"}}, "reasoning.summary"),
        ({"store": "yes"}, "store"),
        ({"temperature": -1}, "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"truncation": "always"}, "truncation"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "web_search"}]}}, "tool_choice.tools[0]"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function"}]}}, "tool_choice.tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [LOOK, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [LOOK, {"type": "custom"}]}, "tools[1].name"),
        ({"tools": [LOOK, {"type": "namespace", "tools": [LOOK]}]}, "tools[1].name"),
        ({"tools": [{**ROOM, "tools": [LOOK, {"type": "function"}]}]}, "tools[0].tools[1].name"),
        ({"tools": [{**ROOM, "tools": [{"type": "web_search"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [{**ROOM, "tools": [{"type": "custom", "name": "patch"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [{**LOOK, "parameters": "x"}]}, "tools[0].parameters"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(asked, fields, param):
    with pytest.raises(Refused) as refused:
        asked(fields.pop("input", "Hi"), **fields)

    assert refused.value.param == param


@pytest.mark.parametrize(
    "name", ["instructions", "max_output_tokens", "metadata", "reasoning", "store", "text", "tools"]
)
def test_null_is_an_absent_field(asked, name):
    assert asked(**{name: None}) == asked()


def test_fields_reach_the_job(asked):
    job = asked(max_output_tokens=7, temperature=0.5, top_p=0.9, top_k=3, model="tiny").job

    assert (job.max_tokens, job.model) == (7, "tiny")
    assert (job.sampling.temperature, job.sampling.top_p, job.sampling.top_k) == (0.5, 0.9, 3)


def test_tools_are_offered_in_the_form_of_templates(asked):
    conversation = asked(tools=[LOOK], parallel_tool_calls=False)

    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    assert conversation.job.prompts[0].tools == ({"type": "function", "function": function},)
    assert conversation.parallel_calls is False


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (None, CallPolicy(CallMode.AUTO)),
        ("auto", CallPolicy(CallMode.AUTO)),
        ("none", CallPolicy(CallMode.NONE)),
        ("required", CallPolicy(CallMode.REQUIRED)),
        ({"type": "function", "name": "look"}, CallPolicy(CallMode.REQUIRED, "look")),
    ],
)
def test_a_choice_of_tools(asked, sent, meant):
    assert asked(tools=[LOOK], tool_choice=sent).tool_choice == meant


def test_a_choice_of_some_tools_shows_no_others(asked):
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}
    conversation = asked(tools=[{**LOOK, "name": "other"}, LOOK], tool_choice=choice)

    assert conversation.tool_choice == CallPolicy(CallMode.REQUIRED)
    assert [tool["function"]["name"] for tool in conversation.job.prompts[0].tools] == ["look"]


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonFormat(None, "text.format")),
        (
            {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True},
            JsonFormat({"type": "object"}, "text.format.schema"),
        ),
    ],
)
def test_a_format_of_the_answer(asked, sent, meant):
    assert asked(text={"format": sent}).answer_format == meant


@pytest.mark.parametrize(("effort", "thinks"), [(None, None), ("none", False), ("minimal", None), ("high", None)])
def test_an_effort_of_thinking_is_told_to_the_template(asked, effort, thinks):
    conversation = asked(reasoning={"effort": effort})

    assert conversation.thinks is thinks
    assert conversation.job.prompts[0].template_arguments.get("reasoning_effort") == effort


@pytest.mark.parametrize(
    ("tool", "param"),
    [({**LOOK, "name": "a b"}, "tools[0].name"), ({**LOOK, "parameters": {"type": "x"}}, "tools[0].parameters")],
)
def test_a_tool_that_cannot_be_offered_is_refused_with_its_place(tool, param):
    with pytest.raises(Refused) as refused:
        call({"input": "Hi", "tools": [tool], "tool_choice": "required"})

    assert refused.value.param == param


def test_a_search_that_an_agent_offers_beside_its_functions_is_left_out_and_not_echoed(asked):
    conversation = asked(tools=[{"type": "web_search", "external_web_access": False}, LOOK])
    response = complete_json(call({"input": "Hi", "tools": [{"type": "web_search"}, LOOK]}).answer, HELLO)

    assert [tool["function"]["name"] for tool in conversation.job.prompts[0].tools] == ["look"]
    assert response["tools"] == [LOOK]


def test_a_function_of_a_namespace_is_called_by_a_name_of_its_own(asked):
    conversation = asked([{**CALL, "namespace": "room"}, OUTPUT], tools=[ROOM, LOOK])

    assert [tool["function"]["name"] for tool in conversation.job.prompts[0].tools] == ["room__look", "look"]
    assert turns(conversation)[0]["tool_calls"][0]["function"]["name"] == "room__look"


def test_a_custom_tool_is_a_function_with_an_input(asked):
    called = {"type": "custom_tool_call", "call_id": "c1", "name": "code", "input": "1\n2"}
    given = {**OUTPUT, "type": "custom_tool_call_output"}
    tool = {"type": "custom", "name": "code", "description": "Runs.", "format": {"type": "text"}}

    conversation = asked([called, given], tools=[tool], tool_choice={"type": "custom", "name": "code"})

    function = conversation.job.prompts[0].tools[0]["function"]
    assert (function["name"], list(function["parameters"]["properties"])) == ("code", ["input"])
    assert conversation.tool_choice == CallPolicy(CallMode.REQUIRED, "code")
    call, result = turns(conversation)
    assert call["tool_calls"][0]["function"] == {"name": "code", "arguments": {"input": "1\n2"}}
    assert result == {"role": "tool", "tool_call_id": "c1", "name": "code", "content": "a wall"}


def test_a_grammar_of_a_custom_tool_is_refused():
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}

    with pytest.raises(NotSupported) as refused:
        call({"input": "Hi", "tools": [{"type": "custom", "name": "code", "format": form}]})

    assert refused.value.param == "tools[0].format.type"


@pytest.mark.parametrize("names", [[], ["reasoning.encrypted_content", "web_search_call.action.sources"]])
def test_what_there_is_nothing_of_may_be_included(asked, names):
    assert asked(include=names) == asked()


def test_an_item_of_a_stored_response_may_be_referred_to(asked):
    shelf = ResponseStore(10_000).shelf("me")
    (item,) = complete_json(call({"input": "Hi"}, shelf).answer, HELLO)["output"]

    found = turns(asked([{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "And?"}], shelf))

    assert found == [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "And?"}]


@pytest.mark.parametrize("id", ["", "msg", "msg_1", "msg_" + 40 * "0" + "0000"])
def test_a_reference_to_nothing_is_told_what_to_send(asked, id):
    with pytest.raises(NotFound, match="send the item itself") as missing:
        asked([{"type": "item_reference", "id": id}])

    assert (missing.value.param, missing.value.code) == ("input[0].id", "item_not_found")


def test_a_response_goes_on_from_another_without_its_instructions(asked):
    shelf = ResponseStore(10_000).shelf("me")
    before = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
    shelf.put(Stored(empty_response("resp_1"), before))

    found = turns(asked("And?", shelf, previous_response_id="resp_1", instructions="Be brief."))

    assert found == [{"role": "system", "content": "Be brief."}, *before, {"role": "user", "content": "And?"}]


def test_what_a_call_gave_may_come_with_the_next_response(asked):
    shelf = ResponseStore(10_000).shelf("me")
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {}}}
    shelf.put(Stored(empty_response("resp_1"), ({"role": "assistant", "content": "", "tool_calls": [called]},)))

    assert turns(asked([OUTPUT], shelf, previous_response_id="resp_1"))[-1]["role"] == "tool"


def test_an_unknown_previous_response_is_not_found(asked):
    with pytest.raises(NotFound) as missing:
        asked(previous_response_id="resp_2")

    assert (missing.value.param, missing.value.code) == ("previous_response_id", "response_not_found")


def test_a_conversation_is_truncated_only_where_that_is_asked_for(asked):
    long = [{"role": role, "content": "x" * 400} for role in ("user", "assistant", "user")]

    assert len(turns(asked(long))) == 3
    assert len(turns(asked(long, truncation="disabled"))) == 3
    assert len(turns(asked(long, truncation="auto"))) == 1


def test_what_was_truncated_is_stored(asked):
    shelf = ResponseStore(100_000).shelf("me")
    long = [{"role": role, "content": "x" * 400} for role in ("user", "assistant", "user")]

    response = complete_json(call({"input": long, "truncation": "auto"}, shelf).answer, HELLO)

    assert response["truncation"] == "auto"
    assert len(turns(asked("Hi", shelf, previous_response_id=response["id"]))) == 5


@pytest.mark.parametrize(("store", "is_kept"), [(None, True), (True, True), (False, False)])
def test_a_response_is_stored_unless_told_otherwise(store, is_kept):
    shelf = ResponseStore(10_000).shelf("me")

    response = complete_json(call({"input": "Hi", "store": store}, shelf).answer, HELLO)

    assert response["store"] is is_kept
    if is_kept:
        assert as_json(shelf.get(response["id"]).response) == response
    else:
        with pytest.raises(NotFound):
            shelf.get(response["id"])


@pytest.mark.usefixtures("asked")
def test_a_response_says_what_was_asked():
    sent = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "tools": [LOOK],
        "tool_choice": {"type": "function", "name": "look"},
        "parallel_tool_calls": False,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "store": False,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "max_tool_calls": 3,
        "prompt_cache_key": "one",
        "safety_identifier": "me",
        "service_tier": "flex",
    }

    response = complete_json(call({"input": "Hi", **sent}).answer, HELLO)

    assert {name: response[name] for name in sent} == sent


def test_a_response_says_what_was_taken_for_granted():
    response = complete_json(call({"input": "Hi"}).answer, HELLO)

    expected = {"temperature": 0.8, "top_p": 0.95, "tools": [], "tool_choice": "auto", "store": True, "metadata": {},
                "text": {"format": {"type": "text"}}, "instructions": None, "max_output_tokens": None,
                "frequency_penalty": 0.0, "presence_penalty": 0.0, "max_tool_calls": None, "prompt_cache_key": None,
                "safety_identifier": None, "service_tier": "default", "top_logprobs": 0}  # fmt: skip
    assert {name: response[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({"service_tier": "flex"}, LAST_PRIORITY),
        ({"service_tier": "priority"}, None),
        ({"service_tier": "flex", "priority": 3}, 3),
        ({}, None),
    ],
)
def test_a_response_with_a_service_tier_has_its_priority(fields, priority):
    assert call({"input": "Hi", **fields}).priority == priority


def test_thoughts_after_words_begin_another_turn(asked):
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}

    found = turns(asked([{"role": "assistant", "content": "a"}, reasoning]))

    assert found == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    ]


def test_a_stream_may_tell_how_far_it_is():
    wanted = {"timings_per_token": True, "return_progress": True}

    job = call({"input": "Hi", "stream": True, **wanted}).job
    assert (job.tells_progress, job.sampling.n_probs) == (True, 0)
    assert not call({"input": "Hi", **wanted}).job.tells_progress


def test_an_error_about_the_prompt_names_the_input():
    assert call({"input": "Hi"}).job.prompts[0].param == "input"


def test_a_budget_of_thoughts_has_the_names_of_chats(asked):
    conversation = asked(thinking_budget_tokens=7, reasoning_budget_message="So.")

    assert (conversation.thought_tokens, conversation.thought_message) == (7, "So.")
    assert (asked().thought_tokens, asked(reasoning_budget=-1).thought_message) == (None, None)


LOGPROBS = ["message.output_text.logprobs"]


def test_logprobs_are_asked_of_the_job_where_they_are_included():
    assert call({"input": "Hi", "include": LOGPROBS}).job.sampling.n_probs == 0
    assert call({"input": "Hi", "include": LOGPROBS, "top_logprobs": 20}).job.sampling.n_probs == 20
    assert call({"input": "Hi", "top_logprobs": 0}).job.sampling.n_probs == -1
    assert call({"input": "Hi", "include": ["reasoning.encrypted_content"]}).job.sampling.n_probs == -1


@pytest.mark.parametrize("fields", [{"top_logprobs": 3}, {"top_logprobs": 21, "include": LOGPROBS}])
def test_likely_tokens_that_cannot_be_shown_are_refused(fields):
    with pytest.raises(Refused) as refused:
        call({"input": "Hi", **fields})

    assert refused.value.param == "top_logprobs"


def begun(shelf: Shelf, *sent: dict[str, Any]) -> str:
    return shelf.begin({}, items.list_items(sent, shelf)).id


def texts(shelf: Shelf, conversation: str) -> list[str]:
    kept = items.decode_all(shelf.conversation(conversation).items.values())
    return [item["content"][0]["text"] for item in kept]


def test_a_conversation_stands_before_the_input_and_gets_it_with_the_output(asked):
    shelf = ResponseStore(100_000).shelf("me")
    id = begun(shelf, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"})
    sent = {"input": "How?", "conversation": {"id": id}, "store": False}

    response = complete_json(call(sent, shelf).answer, HELLO)

    assert response["conversation"] == {"id": id}
    assert texts(shelf, id) == ["Hi", "Yes?", "How?", "Hello"]
    assert [turn["content"] for turn in turns(asked("And?", shelf, conversation=id))] == [
        "Hi", "Yes?", "How?", "Hello", "And?",
    ]  # fmt: skip


def test_responses_at_the_same_time_add_their_turns_one_after_the_other():
    shelf = ResponseStore(100_000).shelf("me")
    id = begun(shelf)
    first, second = (call({"input": words, "conversation": id}, shelf).answer for words in ("one", "two"))

    complete_json(second, HELLO)
    complete_json(first, HELLO)

    assert texts(shelf, id) == ["two", "Hello", "one", "Hello"]


def test_a_response_that_failed_leaves_its_conversation_as_it_was():
    shelf = ResponseStore(100_000).shelf("me")
    id = begun(shelf, {"role": "user", "content": "Hi"})
    answer = call({"input": "How?", "conversation": id, "background": True, "stream": True}, shelf).answer

    answer.events(HELLO[:1])
    answer.failure(CorosrvError("it broke"))

    assert texts(shelf, id) == ["Hi"]


def test_a_conversation_that_was_deleted_meanwhile_does_not_come_back():
    shelf = ResponseStore(100_000).shelf("me")
    id = begun(shelf)
    answer = call({"input": "How?", "conversation": id}, shelf).answer
    shelf.end(id)

    assert complete_json(answer, HELLO)["status"] == "completed"

    with pytest.raises(NotFound):
        shelf.conversation(id)


def test_a_response_can_go_on_from_one_of_a_conversation(asked):
    shelf = ResponseStore(100_000).shelf("me")
    id = begun(shelf, {"role": "user", "content": "Hi"})
    response = complete_json(call({"input": "How?", "conversation": id}, shelf).answer, HELLO)

    conversation = asked("And?", shelf, previous_response_id=response["id"])

    assert [turn["content"] for turn in turns(conversation)] == ["Hi", "How?", "Hello", "And?"]


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"conversation": "conv_1"}, NotFound, "conversation_not_found"),
        ({"conversation": "", "previous_response_id": "resp_1"}, Refused, "mutually_exclusive_parameters"),
        ({"conversation": {"name": "x"}}, Refused, "missing_required_parameter"),
    ],
)
def test_a_conversation_that_cannot_be_gone_on_from_is_refused(fields, kind, code):
    with pytest.raises(kind) as refused:
        call({"input": "Hi", **fields})

    assert refused.value.param.startswith("conversation")
    assert refused.value.code == code


def test_input_beyond_the_room_of_a_conversation_is_refused_before_the_answer():
    shelf = ResponseStore(20_000).shelf("me")
    id = begun(shelf)

    with pytest.raises(Refused) as refused:
        call({"input": "x" * 10_000, "conversation": id}, shelf)

    assert (refused.value.param, refused.value.code) == ("conversation", "conversation_too_large")
    assert texts(shelf, id) == []
