"""Calls of models whose templates list tools and show no calls: LFM2, LFM2.5 and Granite 3.3."""

from __future__ import annotations

from typing import Any

import pytest

from corosrv.formats.callformats.description import GRANITE3, LFM2, told_calls
from corosrv.models.engine.chat import write_tools
from tests.formats.callformats.answers import Answer
from tests.formats.callformats.test_templates import CALLS, NAME, TOOLS, USER, forced, read, rendering, syntax, traits
from tests.support import llama_templates
from tests.support.oracle import shared_oracle

FORMATS = {"LFM2-8B-A1B": LFM2, "LFM2.5-Instruct": LFM2, "ibm-granite-granite-3.3-2B-Instruct": GRANITE3}
LFM, GRANITE = "LFM2-8B-A1B", "ibm-granite-granite-3.3-2B-Instruct"
# Strings that end early, or stay escaped, where quotes and escapes are not minded.
STRINGS = [
    '"',
    "'",
    "a \"b\", 'c')",
    "\\",
    "\\n",
    "\n\t\r\b\f",
    "/\\/",
    "\x01\x7f",
    "é\U0001f600",
    "",
    ")]<|tool_call_end|>",
    "[{",
]


def rendered(name: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Returns the turn of an assistant with these calls, as the prompt of the next turn has it."""
    called = [{"id": "call_1", "type": "function", "function": {"name": tool, "arguments": arguments}}
              for tool, arguments in calls]  # fmt: skip
    turn = {"role": "assistant", "content": "", "tool_calls": called}
    result = {"role": "tool", "content": "nedresult", "tool_call_id": "call_1", "name": NAME}
    messages, tools = write_tools([USER, turn, result], TOOLS, traits(name))
    return rendering(name)(messages, tools=tools, add_generation_prompt=True)


def call_text(name: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    text, form = rendered(name, calls), traits(name).call_format
    begin = text.rindex(form.start)
    return text[begin : text.index("<|im_end|>" if name != GRANITE else "<|end_of_text|>", begin)]


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    if not llama_templates.are_here():
        pytest.skip("llama.cpp's chat templates came after the tests were collected; the next run has them")
    return str(request.param)


def test_a_template_that_tells_of_its_calls_shows_tools_and_results_in_its_own_way(name):
    found, text = traits(name), rendered(name, CALLS["one"])

    assert found.call_format == FORMATS[name]
    assert text.count("nedwords") == len(TOOLS)
    assert "You may call functions" not in text
    assert "nedresult" in text
    assert "<tool_response>" not in text


def test_a_template_of_other_words_tells_nothing():
    assert told_calls("{{ messages }} Tools: [{{ tools }}] <tool_call>") is None


@pytest.mark.parametrize("calls", CALLS)
def test_calls_of_earlier_turns_stand_in_the_prompt_as_the_model_writes_them(name, calls):
    text = call_text(name, CALLS[calls])

    for pieces in ([text], list(text)):
        assert read(syntax(traits(name)), pieces) == ("", "", CALLS[calls])


@pytest.mark.parametrize("value", STRINGS)
def test_a_string_comes_back_whatever_is_in_it(name, value):
    calls = [(NAME, {"text": value, "number": 1})]
    text = call_text(name, calls)

    for pieces in ([text], list(text)):
        assert read(syntax(traits(name)), pieces) == ("", "", calls)


@pytest.mark.timeout(300)  # the first of them builds the native recogniser
@pytest.mark.parametrize("calls", CALLS)
def test_a_required_call_lets_the_model_write_what_stands_in_prompts(name, calls):
    text = call_text(name, CALLS[calls])

    assert shared_oracle().verdicts(forced(traits(name), len(CALLS[calls]) > 1), [text]) == "y"


REFUSED = {
    LFM: ["[nedtool()]<|tool_call_end|>", "<|tool_call_start|>nedtool()<|tool_call_end|>",
          '<|tool_call_start|>[nedtool(text="a"]<|tool_call_end|>', '<|tool_call_start|>[other()]<|tool_call_end|>',
          '<|tool_call_start|>[nedtool(number="a")]<|tool_call_end|>',
          '<|tool_call_start|>[nedtool(text="a", text="b")]<|tool_call_end|>'],
    GRANITE: ['[{"name": "nedtool", "arguments": {}}]', '<|tool_call|>{"name": "nedtool", "arguments": {}}',
              '<|tool_call|>[{"name": "other", "arguments": {}}]', '<|tool_call|>[{"name": "nedtool"}]'],
}  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", REFUSED)
def test_a_required_call_is_in_the_models_format(name):
    assert shared_oracle().verdicts(forced(traits(name), True), REFUSED[name]) == "n" * len(REFUSED[name])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [LFM, "LFM2.5-8B-A1B"])
def test_strings_of_a_required_call_have_either_quote_and_hold_the_other(name):
    strings = ['"it\'s"', "'so \"far\"'", '"a \\"b\\" \\n"', "'a \\'b\\''", "\"a'", '"a" b"']
    texts = [f"<|tool_call_start|>[nedtool(text={string}, number=1)]<|tool_call_end|>" for string in strings]

    # The last string but one has not ended yet.
    assert shared_oracle().verdicts(forced(traits(name), False), texts) == "yyyybn"


RAIN, SUN = ("rain", {"at": "Ulm"}), ("sun", {})
# Template, answer, and its thoughts, text and calls.
ANSWERS: list[tuple[str, str, str, str, list[tuple[str, Any]]]] = [
    (LFM, '<|tool_call_start|>[rain(at="Ulm")]<|tool_call_end|>', "", "", [RAIN]),
    (LFM, "<|tool_call_start|>[rain(at='Ulm'), sun()]<|tool_call_end|>", "", "", [RAIN, SUN]),
    (LFM, '<|tool_call_start|>[rain(at = "Ulm" ),\n sun( )]<|tool_call_end|> It rains.', "", "It rains.", [RAIN, SUN]),
    (LFM, 'Let me see.\n<|tool_call_start|>[rain(at="Ulm")]<|tool_call_end|>', "", "Let me see.", [RAIN]),
    (LFM, '<|tool_call_start|>[rain(at="\\u00fc\\x41\\\\u0041\\d\\/")]<|tool_call_end|>', "", "",
     [("rain", {"at": "üA\\u0041\\d/"})]),
    (LFM, '<|tool_call_start|>[rain(at=[true, None], x={"a": false, "b": True, "c": "true"})]<|tool_call_end|>', "", "",
     [("rain", {"at": [True, None], "x": {"a": False, "b": True, "c": "true"}})]),
    (LFM, "Use [link](url) and [rain].", "", "Use [link](url) and [rain].", []),
    ("LFM2.5-Instruct", '<think>Well</think>Hm.<|tool_call_start|>[sun()]<|tool_call_end|>', "Well", "Hm.", [SUN]),
    (GRANITE, '<|tool_call|>[{"name": "rain", "arguments": {"at": "Ulm"}}]', "", "", [RAIN]),
    (GRANITE, '<|tool_call|> [ {"name":"rain","arguments":{"at":"Ulm"}},\n{"name": "sun", "arguments": {}} ]', "", "",
     [RAIN, SUN]),
    (GRANITE, '<think>Well</think><tool_call|>', "Well", "<tool_call|>", []),
    (GRANITE, "<think>Well</think>\n<response>It is.</response>", "Well", "It is.", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "thoughts", "text", "calls"), ANSWERS)
def test_an_answer_is_read_wherever_it_is_cut(name, answer, thoughts, text, calls):
    read_as = syntax(traits(name))

    for pieces in ([answer], list(answer), *([answer[:at], answer[at:]] for at in range(1, len(answer)))):
        assert read(read_as, pieces) == Answer(thoughts, text, calls)
