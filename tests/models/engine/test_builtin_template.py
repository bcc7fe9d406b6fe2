"""Chat templates that libllama has built in: every one of them shows a conversation in full."""

import re

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Messages
from corosrv.models.engine.binding import apply_chat_template, chat_template_names
from corosrv.models.engine.chat import ChatTemplate
from corosrv.models.engine.marks import builtin_name, check_source

SYSTEM = {"role": "system", "content": "Be kind."}
FIRST, SECOND, THIRD = (
    {"role": "user", "content": "Hello you"},
    {"role": "assistant", "content": "Good day"},
    {"role": "user", "content": "Bye then"},
)
CONVERSATION = (SYSTEM, FIRST, SECOND, THIRD)
TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {"type": "object"}}}


def render(name: str, *messages: dict[str, str], tools=(), markers=(), **options) -> str:
    template = ChatTemplate(name, markers, {})
    return "".join(piece.text for piece in template.render(Messages(messages, tools, **options)))


def test_the_names_are_llama_cpp_s():
    assert {"chatml", "llama2", "llama3", "gemma", "mistral-v7", "phi4"} < set(chat_template_names())


@pytest.mark.parametrize("name", chat_template_names())
def test_every_built_in_template_shows_the_conversation_in_its_order(name: str):
    prompt = render(name, *CONVERSATION)

    places = [prompt.find(message["content"]) for message in CONVERSATION]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("name", chat_template_names())
def test_every_built_in_template_goes_on_with_an_answer_that_has_begun(name: str):
    prompt = render(name, *CONVERSATION, SECOND, add_generation_prompt=False, continue_final=True)

    assert prompt.endswith("Good day")


def test_llama3_is_written_with_its_markers():
    assert render("llama3", FIRST) == (
        "<|start_header_id|>user<|end_header_id|>\n\nHello you<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_tools_calls_and_results_are_written_into_the_text():
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "dry", "tool_call_id": "1", "name": "weather"}

    prompt = render("llama3", FIRST, called, result, tools=(TOOL,))

    assert re.search(r"<tools>.*weather.*</tools>.*<tool_call>.*Bonn.*<tool_response>\ndry", prompt, re.DOTALL)


def test_markers_in_a_message_stay_text():
    pieces = ChatTemplate("llama3", ["<|eot_id|>"], {}).render(Messages(({**FIRST, "content": "a<|eot_id|>b"},)))

    assert [piece.text for piece in pieces if piece.is_text] == ["<|eot_id|>"]


def test_text_behind_a_nul_is_not_lost():
    assert "a\0b" in render("chatml", {**FIRST, "content": "a\0b"})


def test_a_long_conversation_is_written_in_full():
    prompt = render("chatml", *(({**FIRST, "content": f"é{number}," * 50}) for number in range(200)))

    assert prompt.count("é199,") == 50


@pytest.mark.parametrize("source", ["llama3", "llama3\n", " chatml"])
def test_a_name_selects_the_built_in_template(source: str):
    check_source(source)

    assert builtin_name(source) == source.strip()


@pytest.mark.parametrize("source", ["{{ messages }}", "{% if x %}{% endif %}"])
def test_a_template_s_text_is_taken_for_what_it_is(source: str):
    check_source(source)

    assert builtin_name(source) is None


@pytest.mark.parametrize("source", ["llama33", "You are helpful.", "LLAMA3", "{ messages }"])
def test_a_text_without_template_syntax_is_refused_with_the_names_that_there_are(source: str):
    with pytest.raises(Refused, match=r"neither a Jinja template.*chatml, .*llama3"):
        check_source(source)


def test_libllama_does_not_guess_what_an_unknown_name_means():
    with pytest.raises(Refused):
        apply_chat_template("<|im_start|>", [("user", "x")], True)
