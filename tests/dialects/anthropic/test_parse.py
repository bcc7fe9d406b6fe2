"""Bodies to conversations: blocks, tools, choices, and what is refused with its place."""

import json
from typing import Any

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Job, Messages, ModelCard
from corosrv.dialects.anthropic import parse, schema
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation, JsonFormat
from corosrv.dialects.chat.prepare import TextParser
from corosrv.formats.bodies import convert
from corosrv.web.http import body_reader
from tests.support.processor_time import least_seconds

REQUEST = Request(EnvironBuilder(method="POST", content_type="application/json").get_environ())
CARD = ModelCard("tiny", created=1, capabilities=frozenset({"tools"}))
LOOK = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a wall"}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def ours(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def document(source: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    plain = {"type": "text", "media_type": "text/plain", "data": "The sky is green."}
    return {"type": "document", "source": source or plain, **members}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A body's conversation, as it is handed on."""
    seen: list[Conversation] = []

    def prepare(conversation: Conversation, card: ModelCard) -> tuple[Job, TextParser]:
        seen.append(conversation)
        return conversation.job, TextParser()

    monkeypatch.setattr(parse, "prepare", prepare)

    def ask(*messages: Any, **fields: Any) -> Conversation:
        raw = json.dumps({"max_tokens": 9, "messages": list(messages) or [user("Hi")], **fields}).encode()
        sent = body_reader.decode(REQUEST, raw, schema.decoder)
        parse.call(sent, CARD, "req_1")
        return seen[-1]

    return ask


def prompt(conversation: Conversation) -> Messages:
    (prompt,) = conversation.job.prompts
    assert isinstance(prompt, Messages)
    return prompt


@pytest.mark.parametrize("system", ["Be brief.", [text("Be brief.")]])
def test_the_system_prompt_comes_first(asked, system):
    assert prompt(asked(system=system)).messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    )


def test_blocks_are_turns(asked):
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    failed = {**RESULT, "tool_use_id": "t2", "content": [text("no"), text("eyes")], "is_error": True}

    found = prompt(
        asked(
            user("Where?"),
            ours(thinking, text("Let me"), text("see."), USE, {**USE, "id": "t2"}),
            user(RESULT, failed, text("Well?")),
        )
    ).messages

    function = {"name": "look", "arguments": {"at": 1}}
    assert found[1:] == (
        {
            "role": "assistant",
            "content": "Let me\nsee.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": id, "type": "function", "function": function} for id in ("t1", "t2")],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "look", "content": "a wall"},
        {"role": "tool", "tool_call_id": "t2", "name": "look", "content": "Error: no\neyes"},
        {"role": "user", "content": "Well?"},
    )


def test_very_many_blocks_take_linear_time(asked):
    """Thousands of calls, results and thoughts: what compares or copies them all for each takes minutes."""
    many = range(12_000)
    thoughts = [{"type": "thinking", "thinking": "x" * 500, "signature": ""} for _ in many]
    uses = [{**USE, "id": f"t{i}"} for i in many]
    results = [{**RESULT, "tool_use_id": "t11999"} for _ in many]

    found: list[Messages] = []

    def read() -> None:
        found.append(prompt(asked(user("?"), ours(*thoughts, *uses), user(*results))))

    assert least_seconds(read, 5) < 5  # most of the second that it takes is the scanner in Python
    messages = found[0].messages
    assert len(messages[1]["reasoning_content"]) == 500 * len(many)
    assert len(messages) == 2 + len(many)


def test_thoughts_that_nobody_can_read_are_left_out(asked):
    found = prompt(asked(user("?"), ours({"type": "redacted_thinking", "data": "x"}, text("It is.")), user("Sure?")))

    assert found.messages[1] == {"role": "assistant", "content": "It is."}


@pytest.mark.parametrize("content", ["Be brief.", [text("Be brief.")]])
def test_the_operator_may_speak_later_too(asked, content):
    found = prompt(asked(user("Hi"), {"role": "system", "content": content}, user("?"))).messages

    assert found[1] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("edits", [[], [{"type": "clear_thinking_20251015", "keep": "all"}]])
def test_a_context_of_which_nothing_is_dropped_is_the_same(asked, edits):
    assert asked(context_management={"edits": edits}) == asked()


def test_a_result_may_be_empty(asked):
    found = prompt(asked(user("?"), ours(USE), user({"type": "tool_result", "tool_use_id": "t1"}))).messages

    assert found[-1] == {"role": "tool", "tool_call_id": "t1", "name": "look", "content": ""}


@pytest.mark.parametrize(
    ("block", "written"),
    [
        (document(), "<document>\nThe sky is green.\n</document>"),
        (
            document(title="Sky", context="A poem", citations={"enabled": False}),
            "<document>\n<title>Sky</title>\n<context>A poem</context>\nThe sky is green.\n</document>",
        ),
        (document({"type": "content", "content": "Blue."}), "<document>\nBlue.\n</document>"),
        (document({"type": "content", "content": [text("a"), text("b")]}), "<document>\na\nb\n</document>"),
    ],
)
def test_a_document_of_text_is_part_of_the_message(asked, block, written):
    (message,) = prompt(asked(user(block, text("What colour?")))).messages

    assert message["content"] == f"{written}\nWhat colour?"


def test_a_document_may_be_what_a_tool_gave_back(asked):
    result = {**RESULT, "content": [document()]}

    assert "green" in prompt(asked(user("x"), ours(USE), user(result))).messages[-1]["content"]


@pytest.mark.parametrize(("last", "is_continued"), [(user("Hi"), False), (ours("Once"), True)])
def test_an_answer_that_was_begun_is_gone_on_with(asked, last, is_continued):
    found = prompt(asked(user("Tell."), last))

    assert (found.continue_final, found.add_generation_prompt) == (is_continued, not is_continued)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "pirate", "content": "x"}], "messages[0].role"),
        ([user({"type": "image", "source": {}})], "messages[0].content[0]"),
        ([user({"type": "document", "source": {}})], "messages[0].content[0].source.type"),
        ([user(document({"type": "text"}))], "messages[0].content[0].source.data"),
        ([user(document({"type": "url", "url": "http://x"}))], "messages[0].content[0].source.type"),
        ([user(document({"type": "base64", "data": ""}))], "messages[0].content[0].source.type"),
        (
            [user(document({"type": "content", "content": [{"type": "image"}]}))],
            "messages[0].content[0].source.content[0]",
        ),
        ([user(document(citations={"enabled": True}))], "messages[0].content[0].citations"),
        ([user({"type": "redacted_thinking", "data": "x"})], "messages[0].content[0]"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user(text("x"), USE)], "messages[0].content[1]"),
        ([user("x"), ours(RESULT)], "messages[1].content[0]"),
        ([user(RESULT)], "messages[0].content[0].tool_use_id"),
        ([user("x"), ours({**USE, "input": "x"})], "messages[1].content[0].input"),
        ([user("x"), ours(USE), user({**RESULT, "content": [{"type": "image"}]})], "messages[2].content[0].content[0]"),
        ([user("x"), ours(USE)], "messages"),
        ([user("x")] * 2049, "messages"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_its_place(asked, messages, param):
    with pytest.raises(Refused) as refused:
        asked(*messages)

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": None}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"model": 5}, "model"),
        ({"system": 5}, "system"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"thinking": {"type": "always"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "display": "hidden"}}, "thinking.display"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [{"name": "look"}]}, "tools[0].input_schema"),
        ({"tools": [LOOK, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(asked, fields, param):
    with pytest.raises(Refused) as refused:
        asked(**fields)

    assert refused.value.param == param


@pytest.mark.parametrize("name", ["container", "mcp_servers", "context_management", "speed"])
def test_what_is_not_offered_is_refused_by_name(asked, name):
    with pytest.raises(NotSupported, match=name) as refused:
        asked(**{name: {"some": "thing"}})

    assert refused.value.param == name


def test_fields_reach_the_job(asked):
    job = asked(temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["END", "\n"], metadata={"user_id": "x"}).job

    assert (job.max_tokens, job.stop) == (9, ("END", "\n"))
    assert (job.sampling.temperature, job.sampling.top_p, job.sampling.top_k) == (0.5, 0.9, 3)


def test_tools_are_offered_in_the_form_of_templates(asked):
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}

    for tool in (LOOK, {**LOOK, "type": "custom"}):
        assert prompt(asked(tools=[tool])).tools == ({"type": "function", "function": function},)


@pytest.mark.parametrize(
    ("tool", "param"),
    [({**LOOK, "name": "a b"}, "tools[0].name"), ({**LOOK, "input_schema": {"type": "x"}}, "tools[0].input_schema")],
)
def test_a_tool_that_cannot_be_offered_is_refused_with_its_place(tool, param):
    sent = {"max_tokens": 9, "messages": [user("Hi")], "tools": [tool], "tool_choice": {"type": "any"}}

    with pytest.raises(Refused) as refused:
        parse.call(convert(sent, schema.MessageBody, ""), CARD, "req_1")

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("sent", "meant", "is_parallel"),
    [
        (None, CallPolicy(CallMode.AUTO), True),
        ({"type": "auto"}, CallPolicy(CallMode.AUTO), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, CallPolicy(CallMode.AUTO), False),
        ({"type": "any"}, CallPolicy(CallMode.REQUIRED), True),
        ({"type": "tool", "name": "look"}, CallPolicy(CallMode.REQUIRED, "look"), True),
        ({"type": "none"}, CallPolicy(CallMode.NONE), True),
    ],
)
def test_a_choice_of_tools(asked, sent, meant, is_parallel):
    conversation = asked(tools=[LOOK], tool_choice=sent)

    assert (conversation.tool_choice, conversation.parallel_calls) == (meant, is_parallel)


@pytest.mark.parametrize(
    ("sent", "thinks"),
    [
        (None, None),
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, None),
    ],
)
def test_whether_it_thinks(asked, sent, thinks):
    assert asked(thinking=sent).thinks is thinks


def test_a_budget_of_thoughts(asked):
    assert asked(thinking={"type": "enabled", "budget_tokens": 2048}).thought_tokens == 2048
    assert asked(thinking={"type": "adaptive"}).thought_tokens is None
    assert asked().thought_tokens is None


def test_a_format_of_the_answer(asked):
    wanted = {"type": "json_schema", "schema": {"type": "object"}}

    assert asked().answer_format is None
    assert asked(output_format=wanted).answer_format == JsonFormat({"type": "object"}, "output_format.schema")
    assert asked(output_config={"format": wanted}).answer_format == JsonFormat(
        {"type": "object"}, "output_config.format.schema"
    )


def test_each_message_of_ours_is_a_turn(asked):
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}

    found = prompt(asked(user("?"), ours("a"), ours(thinking, text("b")))).messages

    assert found[1:] == (
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
    )


def test_a_search_result_is_read_with_its_title_and_source(asked: Any):
    found = {"type": "search_result", "source": "https://a.example", "title": "Sky", "content": [text("It is green.")]}
    words = "<search_result>\n<title>Sky</title>\n<source>https://a.example</source>\nIt is green.\n</search_result>"

    by_user = asked(user(found))
    by_tool = asked(user("Look!"), ours(USE), user({**RESULT, "content": [found]}))

    assert by_user.job.prompts[0].messages[0]["content"] == words
    assert by_tool.job.prompts[0].messages[-1]["content"] == words


@pytest.mark.parametrize("name", ["thread", "compaction"])
def test_what_would_keep_a_conversation_here_is_refused_by_name(asked: Any, name: str):
    with pytest.raises(NotSupported) as refused:
        asked(**{name: {"type": "create"}})

    assert refused.value.param == name
