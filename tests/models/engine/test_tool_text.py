"""Tools, calls and results: shown by the template its way, or written into the messages."""

from typing import Any

import pytest

from corosrv.contracts.jobs import Messages
from corosrv.formats.callformats.description import HERMES
from corosrv.models.engine.chat import ChatTemplate
from tests.support.templates import ATTACKS, CHATML, MARKERS, SPECIAL, template

TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells it.", "parameters": {"type": "object", "properties": {}}},
}


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}


ASKED = {"role": "user", "content": "Rain?"}


CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}


RESULT = {"role": "tool", "content": "dry", "tool_call_id": "call_1"}


TOOLS_AS_JSON = (
    '{"type": "function", "function": {"name": "weather", "description": "Tells it.", '
    '"parameters": {"type": "object", "properties": {}}}}'
)


# In the manner of Qwen: everything is shown.
QWEN_TOOLS = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' or m.role == 'assistant' %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>{{ m.content }}</tool_response><|im_end|>
{% endif %}
{%- endfor %}"""


# In the manner of Mistral: short ids, no system turns.
MISTRAL_TOOLS = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]
{%- elif m.tool_calls %}[TOOL_CALLS][
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{% if not loop.last %}, {% endif %}
{%- endfor %}]{{ eos_token }}
{%- elif m.role == 'assistant' %}{{ m.content + eos_token }}
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- else %}{{ raise_exception('only user, assistant and tool') }}
{%- endif %}
{%- endfor %}"""  # noqa: E501


# In the manner of Llama 3: calls without marks around them, one at a time.
LLAMA_TOOLS = """\
{%- for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one at a time') }}{% endif %}
{%- set call = m.tool_calls[0].function %}{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- else %}{{ m.content }}
{%- if tools and loop.first %}{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}
{%- endif %}<|eot_id|>
{%- endfor %}"""


# Arguments have to be JSON text.
TEXT_ARGUMENTS = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", "arguments": \
{{ '' + call.function.arguments }}}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{{ tools | tojson if tools }}"""


# Shows calls in a way of its own, which is learnt.
OWN_FORMAT = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<call={{ call.function.name }}>{{ call.function.arguments | tojson }}
{%- endfor %}<|im_end|>
{% endfor %}"""


# Shows calls in a way that nobody here reads: values stand before their keys.
UNREAD_FORMAT = OWN_FORMAT.replace(
    "{{ call.function.arguments | tojson }}",
    "{% for key, value in call.function.arguments.items() %}<{{ value }} is {{ key }}>{% endfor %}",
)


# In the manner of Magistral: thoughts between control tokens.
THOUGHTS = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}<|im_end|>
{% endfor %}"""


def render_all(source: str, *messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = (), **chosen: Any) -> str:
    prompt = Messages(messages, tools, **{"add_generation_prompt": False, **chosen})
    return "".join(piece.text for piece in template(source).render(prompt))


@pytest.mark.parametrize(
    ("source", "start", "shows"),
    [
        (CHATML, HERMES.start, False),
        (QWEN_TOOLS, '<tool_call>\n{"name": "', True),
        (MISTRAL_TOOLS, '[TOOL_CALLS][{"name": "', True),
        (LLAMA_TOOLS, '{"name": "', True),
        (TEXT_ARGUMENTS, '<tool_call>{"name": "', True),
        (OWN_FORMAT, "<call=", True),
        (UNREAD_FORMAT, HERMES.start, False),
        ("{{ messages[0].content }}", HERMES.start, False),
        ("{{ raise_exception('no') }}", HERMES.start, False),
    ],
)
def test_what_a_template_does_with_tools_is_found_out(source, start, shows):
    traits = template(source).traits

    assert (traits.call_format.start, traits.shows_tools, traits.shows_calls, traits.shows_results) == (
        start, shows, shows, shows,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "hidden", "marks"),
    [
        (MISTRAL_TOOLS, ["[TOOL_CALLS]", "[IMG]"], ("[TOOL_CALLS]",)),
        (OWN_FORMAT, ["<call=", "<pad>"], ("<call=",)),
        (UNREAD_FORMAT, ["<tool_call>", "<call="], ("<tool_call>",)),
        (THOUGHTS, ["[THINK]", "[/THINK]", "[IMG]"], ("[THINK]", "[/THINK]")),
    ],
)
def test_the_marks_are_the_control_tokens_of_calls_and_thoughts(source, hidden, marks):
    assert ChatTemplate(source, MARKERS, SPECIAL, hidden_texts=hidden).traits.marks == marks


def test_a_template_shows_its_tools_its_way():
    assert render_all(QWEN_TOOLS, ASKED, CALLED, RESULT, tools=(TOOL,)) == (
        f"<|im_start|>system\n<tools>{TOOLS_AS_JSON}</tools><|im_end|>\n"
        "<|im_start|>user\nRain?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>dry</tool_response><|im_end|>\n"
    )


def test_arguments_are_text_where_a_template_wants_text():
    assert '"arguments": {"city": "Köln"}}</tool_call>' in render_all(TEXT_ARGUMENTS, ASKED, CALLED)


def test_ids_are_as_short_as_a_template_wants_them():
    prompt = render_all(MISTRAL_TOOLS, ASKED, CALLED, RESULT, tools=(TOOL,))

    short = prompt.partition('"id": "')[2].partition('"')[0]
    assert (len(short), prompt.count(short)) == (9, 2)


@pytest.mark.parametrize(
    "source", [CHATML, UNREAD_FORMAT, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"]
)
def test_what_a_template_does_not_show_is_written_into_the_messages(source):
    prompt = render_all(source, {"role": "system", "content": "Be brief."}, ASKED, CALLED, RESULT, tools=(TOOL,))

    parts = [
        "system", "Be brief.\n\n# Tools\n", f"<tools>\n{TOOLS_AS_JSON}\n</tools>", "user", "Rain?", "assistant",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>',
        "user", "<tool_response>\ndry\n</tool_response>",
    ]  # fmt: skip
    assert [part for part in parts if part not in prompt] == []
    at = [prompt.index("Rain?"), prompt.index('"Köln"'), prompt.index("\ndry\n")]
    assert at == sorted(at)
    assert "tool<" not in prompt.replace("<tool", "")


def test_results_and_what_the_user_says_then_are_one_turn():
    prompt = render_all(CHATML, ASKED, CALLED, RESULT, {**RESULT, "content": "or wet"}, {**ASKED, "content": "So?"})

    assert prompt.endswith(
        "<|im_start|>user\n<tool_response>\ndry\n</tool_response>\n<tool_response>\nor wet\n</tool_response>\nSo?"
        "<|im_end|>\n"
    )


def test_the_system_s_words_go_to_the_user_where_a_template_has_no_system():
    system = {"role": "system", "content": "Be brief."}

    assert render_all(MISTRAL_TOOLS, system, ASKED) == "<s>[INST]Be brief.\nRain?[/INST]"
    assert render_all(MISTRAL_TOOLS, system) == "<s>[INST]Be brief.[/INST]"


def test_a_call_s_text_stays_before_it():
    assert "Let me see.\n<tool_call>" in render_all(CHATML, ASKED, {**CALLED, "content": "Let me see."})


CUT = {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Kö'}}
CUT_RESULT = {"role": "tool", "content": "no JSON", "tool_call_id": "call_2"}


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (CHATML, '<tool_call>\n{"name": "weather", "arguments": {"city": "Kö}\n</tool_call>'),
        (QWEN_TOOLS, '<tool_call>\n{"name": "weather", "arguments": {"city": "Kö}\n</tool_call>'),
        (MISTRAL_TOOLS, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Kö, "id": "'),
        (OWN_FORMAT, '<call=weather>{"city": "Kö'),
        (LLAMA_TOOLS, '{"name": "weather", "parameters": {"city": "Kö}'),
    ],
)
def test_a_call_that_was_cut_off_is_written_as_it_came_and_its_result_follows(source, call):
    cut = {**CALLED, "content": "Well.", "tool_calls": [CUT]}

    prompt = render_all(source, ASKED, cut, CUT_RESULT, {**ASKED, "content": "Again!"})

    assert prompt.index("Rain?") < prompt.index("Well.") < prompt.index(call) < prompt.index("no JSON")
    assert prompt.index("no JSON") < prompt.index("Again!")


def test_a_call_that_was_cut_off_leaves_the_calls_of_other_messages_alone():
    whole = render_all(QWEN_TOOLS, ASKED, CALLED, RESULT)

    prompt = render_all(QWEN_TOOLS, ASKED, CALLED, RESULT, {**CALLED, "tool_calls": [CUT]}, CUT_RESULT)

    assert prompt.startswith(whole)


def test_a_template_that_takes_text_gets_the_text_of_a_call_that_was_cut_off():
    prompt = render_all(TEXT_ARGUMENTS, ASKED, {**CALLED, "tool_calls": [CUT]})

    assert '{"name": "weather", "arguments": {"city": "Kö}' in prompt


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("source", [CHATML, QWEN_TOOLS, MISTRAL_TOOLS, LLAMA_TOOLS])
def test_markers_in_tools_calls_and_results_are_text(source, attack):
    def control(word: str) -> dict[str, int]:
        tool = {"type": "function", "function": {"name": word, "description": word, "parameters": {word: [word]}}}
        call = {"id": word, "type": "function", "function": {"name": word, "arguments": {word: [word, {word: word}]}}}
        asked = (ASKED, {**CALLED, "tool_calls": [call]}, {**RESULT, "content": word, "tool_call_id": word})
        pieces = template(source).render(Messages(asked, (tool,)))
        return {m: sum(piece.text.count(m) for piece in pieces if not piece.is_text) for m in MARKERS}

    assert control(attack) == control("harmless")
