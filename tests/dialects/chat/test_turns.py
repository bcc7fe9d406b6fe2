"""TurnList from their pieces: what the assistant thinks, says and calls in a row is one."""

import pytest

from corosrv.base.errors import Refused
from corosrv.dialects.chat import conversation
from corosrv.dialects.chat.conversation import TurnList


def look(id: str) -> dict[str, object]:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}


def test_thoughts_words_and_calls_in_a_row_are_one_turn():
    said = TurnList()

    said.say("user", "Where?")
    said.think("I could ")
    said.think("look.")
    said.answer("Let me see.")
    said.call("a", "look", {"at": 1})
    said.call("b", "look", {"at": 1})

    assert said.all == (
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "I could look.",
            "tool_calls": [look("a"), look("b")],
        },
    )


def test_words_after_words_or_calls_are_another_turn():
    said = TurnList()

    said.answer("one")
    said.answer("two")
    said.call("a", "look", {"at": 1})
    said.answer("three")

    assert [turn["content"] for turn in said.all] == ["one", "two", "three"]
    assert [len(turn.get("tool_calls", ())) for turn in said.all] == [0, 1, 0]


def test_somebody_elses_turn_ends_ours():
    said = TurnList()

    said.call("a", "look", {"at": 1})
    said.result("a", "there", "param")
    said.call("b", "look", {"at": 1})
    said.say("user", "stop")
    said.think("well")

    assert [turn["role"] for turn in said.all] == ["assistant", "tool", "assistant", "user", "assistant"]
    assert said.all[1] == {"role": "tool", "tool_call_id": "a", "name": "look", "content": "there"}


def test_a_result_may_be_of_a_call_from_before():
    before = TurnList()
    before.call("a", "look", {"at": 1})

    said = TurnList(before.all)
    said.result("a", "there", "param")

    assert len(said.all) == 2
    assert len(before.all) == 1


def test_a_result_of_nothing_is_refused():
    said = TurnList()
    said.call("a", "look", {"at": 1})

    with pytest.raises(Refused, match="'b'") as refused:
        said.result("b", "there", "input[2].call_id")

    assert refused.value.param == "input[2].call_id"


@pytest.mark.parametrize(
    ("sent", "arguments"), [("{}", {}), ("", {}), ('{"a": [1]}', {"a": [1]}), ({"a": [1]}, {"a": [1]})]
)
def test_arguments_are_read_from_their_text_and_taken_as_an_object(sent, arguments):
    assert conversation.arguments(sent, "param") == arguments


@pytest.mark.parametrize(
    "sent", ["{", '{"city": "Par', "[]", "1", "look", '{"a": }', '{"a": NaN}', '{"a": "\\udc00"}', '{"a":' + 200 * "["]
)
def test_arguments_that_are_no_object_stay_text(sent):
    assert conversation.arguments(sent, "param") == sent


def test_arguments_with_half_a_surrogate_pair_are_refused():
    with pytest.raises(Refused) as refused:
        conversation.arguments("\ud800", "input[0].arguments")

    assert refused.value.param == "input[0].arguments"


def test_a_tool_has_what_was_said_of_it():
    assert conversation.tool("look", None, None) == {"type": "function", "function": {"name": "look"}}
    assert conversation.tool("look", "Looks.", {"type": "object"}) == {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
    }
