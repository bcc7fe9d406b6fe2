"""Chat templates: rendered as written, the last message continued, thoughts opened and closed."""

from dataclasses import replace
from datetime import datetime

import pytest

from corosrv.base.errors import NotSupported, PromptTooLong, Refused
from corosrv.contracts.jobs import Messages
from corosrv.formats.callformats.description import HERMES
from corosrv.models.engine.chat import ChatTemplate
from tests.support.engines import answer, job, opened
from tests.support.gguf import write_llama
from tests.support.templates import CHATML, LLAMA, MARKERS, QWEN, SPECIAL, conversation, render, template


def test_turns_are_rendered_in_order():
    assert render(CHATML, "Hi", "Hello!", "Bye") == (
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_generation_prompt_may_be_left_out():
    assert not render(CHATML, add_generation_prompt=False).endswith("assistant\n")


def test_a_template_in_the_manner_of_llama_3():
    assert render(LLAMA, " Hi ", template_arguments={"date_string": "1 Jan 2025"}) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 1 Jan 2025\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_template_in_the_manner_of_qwen_3():
    thoughts = "<think>\nhm\n</think>\n\nHello!"

    assert render(QWEN, "Hi", thoughts, "Bye", template_arguments={"enable_thinking": False}) == (
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""


def test_a_template_in_the_manner_of_mistral():
    assert render(MISTRAL, "Hi", " Hello! ", "Bye") == "<s>[INST] Hi[/INST] Hello!</s>[INST] Bye[/INST]"


def test_a_template_may_refuse_a_conversation_in_its_own_words():
    twice = Messages(({"role": "user", "content": "a"}, {"role": "user", "content": "b"}))

    with pytest.raises(Refused, match="roles must alternate") as refused:
        template(MISTRAL).render(twice)

    assert (refused.value.param, refused.value.code) == ("messages", "invalid_template")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/3 2/3 3/3 "),
        ("{% for m in messages %}{{ 'F' if loop.first }}{{ 'L' if loop.last }}.{% endfor %}", "F..L."),
        ("{% for m in messages %}{{ loop.previtem.content if loop.previtem }}-{% endfor %}", "-a-b-"),
        ("{% for m in messages %}{{ loop.nextitem.content if loop.nextitem }}-{% endfor %}", "b-c--"),
        ("{% for m in messages %}{{ loop.revindex0 }}{% endfor %}", "210"),
        ("{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "a"),
        ("{% for m in messages %}{% if m.content == 'b' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}", "ac"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "ac"),
        ("{% for m in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in messages[0].items() %}{{ k }}={{ v }} {% endfor %}", "role=user content=a "),
        ("{% for i in range(2) %}{% for m in messages %}{{ i }}{{ loop.index }} {% endfor %}{% endfor %}",
         "01 02 03 11 12 13 "),
        ("{{ messages | map(attribute='content') | join('+') }}", "a+b+c"),
        ("{% macro say(x) %}<{{ x }}>{% endmacro %}{{ say('a') ~ say(1) }}", "<a><1>"),
        ("{{ {'a': 'é<', 'b': [1, none]} | tojson }}", '{"a": "é<", "b": [1, null]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{{ 'x' * (1 + 1) if false else 3 * 4 }}", "12"),
        ("{{ missing.content if missing is defined else 'no' }}", "no"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
    ],
)  # fmt: skip
def test_what_templates_use_works(source, expected):
    assert render(source, "a", "b", "c", add_generation_prompt=False) == expected


@pytest.mark.parametrize("begun", ["The answer", "The answer is ", "one\n\n", "\t", ""])
@pytest.mark.parametrize("source", [CHATML, LLAMA])
def test_the_prompt_ends_where_the_last_message_does(source, begun):
    prompt = render(source, "Hi", begun, continue_final=True, add_generation_prompt=False)

    assert prompt.endswith(
        "assistant\n" + begun if source is CHATML else "assistant<|end_header_id|>\n\n" + begun.lstrip()
    )


def test_a_template_that_drops_the_last_message_cannot_continue_it():
    with pytest.raises(Refused, match="drops the message"):
        render("{{ messages[0].content }}", "Hi", "Well", continue_final=True)


def test_rendering_changes_nothing_of_the_messages():
    given = conversation("<|im_end|>", "a", continue_final=True)

    template().render(given)

    assert given == conversation("<|im_end|>", "a", continue_final=True)


GREETING = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198,
]  # fmt: skip


@pytest.mark.model
def test_a_conversation_has_the_tokens_that_the_model_was_trained_on(smollm2):
    assert smollm2.vocabulary(None).encode(conversation("Hi")) == GREETING


THINKING = CHATML + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"


SHOWING = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>"
    "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXTS_ALONE = SHOWING.replace("{{ m.content }}", "{{ m.content or raise_exception('no text') }}")


@pytest.mark.parametrize("begun", ["Let me", "Let me \n ", "<|im_end|>"])
@pytest.mark.parametrize(
    ("source", "before"),
    [
        (THINKING, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"),
        (SHOWING, "<|user|>Hi<|assistant|><think>\n"),
        (TEXTS_ALONE, "<|user|>Hi<|assistant|><think>\n"),
        (QWEN, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>"),
    ],
)
def test_the_prompt_ends_where_the_last_message_s_thoughts_do(source, before, begun):
    said = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "reasoning_content": begun})
    asked = Messages(said, add_generation_prompt=False, continue_final=True, continue_thoughts=True)

    pieces = template(source).render(asked)

    assert "".join(piece.text for piece in pieces) == before + begun
    assert [piece.text for piece in pieces if piece.is_text] == [begun] * (begun in MARKERS)


@pytest.mark.parametrize(
    ("source", "tags", "opens"),
    [
        (CHATML, None, False),
        (QWEN, ("<think>", "</think>"), False),
        (THINKING, ("<think>", "</think>"), True),
        (THINKING.replace("think>", "seed:think>"), ("<seed:think>", "</seed:think>"), True),
    ],
)
def test_whether_a_model_thinks_is_found_out(source, tags, opens):
    traits = template(source).traits

    assert (traits.thought_tags, traits.opens_thoughts) == (tags, opens)


@pytest.mark.parametrize("source", [QWEN, THINKING, CHATML + "{# </think> #}"])
def test_who_is_not_to_think_gets_a_closed_block(source):
    told = render(source, "Hi", template_arguments={"enable_thinking": False})
    by_default = ChatTemplate(source, MARKERS, SPECIAL, arguments={"enable_thinking": False}).render(conversation("Hi"))

    assert told.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert "".join(piece.text for piece in by_default) == told


def test_a_template_is_told_what_the_operator_says_where_a_conversation_does_not():
    told = ChatTemplate("{{ a }} {{ b }}", MARKERS, SPECIAL, arguments={"a": "one", "b": "two"})

    asked = replace(conversation("Hi"), template_arguments={"b": "three"})

    assert "".join(piece.text for piece in told.render(conversation("Hi"))) == "one two"
    assert "".join(piece.text for piece in told.render(asked)) == "one three"


def test_a_model_that_does_not_think_gets_no_block():
    assert render(CHATML, "Hi", template_arguments={"enable_thinking": False}) == render(CHATML, "Hi")


def test_dates_are_told_to_templates_that_ask_for_them():
    now = datetime.now()

    assert render("{{ date_string }}, {{ datetime }}") == f"{now:%d %b %Y}, {now:%b %d %Y}"


def test_a_template_that_counts_on_a_list_of_functions_has_an_empty_one():
    assert render("{{ 'Functions: ' + functions + '.' }}") == "Functions: ."


def test_what_is_marked_for_training_is_rendered():
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hi!"


def test_a_template_of_the_operator_s_own_takes_the_model_s_place():
    with opened(chat_template=THINKING, reasoning="off", reasoning_format="none") as engine:
        prompt = engine.vocabulary(None).render(conversation("Hi"))
        card = engine.card(None)

    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert (card.call_format, card.reasoning_tags, card.opens_reasoning) == (HERMES, ("<think>", "</think>"), True)
    assert (card.reasons, card.splits_reasoning) == (False, False)
    assert card.capabilities >= {"completion", "chat", "tools"}


def test_the_card_has_the_server_s_budget_of_thoughts():
    with opened(chat_template=THINKING, reasoning_budget=5, reasoning_budget_message="So.") as engine:
        limited = engine.card(None)
    with opened(chat_template=THINKING) as engine:
        free = engine.card(None)

    assert (limited.thought_tokens, limited.thought_message) == (5, "So.")
    assert (free.thought_tokens, free.thought_message) == (None, "")


def test_the_name_of_a_built_in_template_takes_the_place_of_the_model_s_own():
    with opened(chat_template="llama3") as engine:
        prompt = engine.vocabulary(None).render(conversation("Hi"))
        capabilities = engine.card(None).capabilities

    assert prompt.startswith("<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>")
    assert capabilities >= {"completion", "chat", "tools"}


def test_tools_that_cannot_fit_are_refused_before_the_template_runs(engine):
    large = {"type": "function", "function": {"name": "a", "description": "word " * 2000}}

    with pytest.raises(PromptTooLong):
        engine.submit(job(prompts=(Messages(conversation("Hi").messages, (large,)),)))


@pytest.mark.parametrize("words", [2000, 500])
def test_an_error_names_the_conversation_as_the_client_s_body_does(engine, words):
    messages = conversation("word " * words).messages

    with pytest.raises(PromptTooLong) as refused:
        engine.submit(job(prompts=(Messages(messages, param="input"),)))

    assert refused.value.param == "input"


def test_a_template_that_refuses_a_conversation_names_it_as_the_client_s_body_does():
    with pytest.raises(Refused, match="refuses this conversation: no!") as refused:
        template("{{ raise_exception('no!') }}").render(Messages(conversation("Hi").messages, param="input"))

    assert refused.value.param == "input"


def test_a_template_that_is_none_takes_conversations_only():
    with opened(chat_template="{% if %}") as engine:
        assert len(answer(engine, job())) > 0
        assert not engine.card(None).capabilities & {"chat", "tools"}
        with pytest.raises(NotSupported, match="chat template cannot be used"):
            engine.submit(job(prompts=(conversation("Hi"),)))


def test_a_model_without_a_template_converses_in_the_most_usual_form(tmp_path):
    begun = conversation("Be brief.", "Hi")

    with opened(model=str(write_llama(tmp_path / "tiny.gguf")), slots=1) as engine:
        prompt = engine.vocabulary(None).render(begun)
        assert engine.card(None).capabilities >= {"chat", "tools"}
        assert engine.vocabulary(None).count(begun) > len(prompt)

    turns = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in begun.messages)
    assert prompt == turns + "<|im_start|>assistant\n"
