"""Control tokens that mark calls and thoughts: a part of answers, of grammars and of what is read from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import Finish, Messages
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation
from corosrv.dialects.chat.parts import AnswerText, CallArguments, CallBegin, Reasoning
from corosrv.dialects.chat.prepare import prepare
from corosrv.formats.callformats.description import CallField
from corosrv.models.engine import Chunk, Engine
from corosrv.models.engine.binding import NativeEngine
from tests.support.engines import GREEDY, answer, job, opened, read_all, text_of
from tests.support.gguf import write_llama

MARKS = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")
UNMARKED = "[IMG]"
EOS, TOOL_CALLS, ARGS, THINK, END_THINK, IMG = 2, 259, 260, 261, 262, 263
# In the manner of Devstral and Magistral.
TEMPLATE = """\
{{- tools | tojson if tools }}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor %}</s>
{%- else %}[INST]{{ m.content }}[/INST]
{%- endif %}
{%- endfor %}"""
TOOL = {"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {}}}}
ASKED = Messages(({"role": "user", "content": "Rain?"},), (TOOL,))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("models") / "marks.gguf"
    write_llama(path, special=(*MARKS, UNMARKED), **{"tokenizer.chat_template": TEMPLATE})
    with opened(model=str(path), slots=1, ctx=256) as engine:
        yield engine


def liking(*tokens: int, **chosen: object) -> dict[str, object]:
    """Returns what makes a job draw these tokens wherever it may, the last of them first."""
    bias = tuple((token, 100.0 + number) for number, token in enumerate(tokens))
    return {"sampling": replace(GREEDY, logit_bias=bias, **chosen)}


def n_tokens(chunks: list[Chunk]) -> int:
    return sum(chunk.n_tokens for chunk in chunks)


def test_a_template_s_own_format_is_used_where_its_marks_are_control_tokens(engine: Engine) -> None:
    traits = engine.vocabulary(None).traits

    assert traits is not None
    assert (traits.marks, traits.shows_calls, traits.thought_tags) == (MARKS, True, ("[THINK]", "[/THINK]"))
    form = traits.call_format
    assert (form.start, form.inner, form.fields) == ("[TOOL_CALLS]", ("[ARGS]",), (CallField.NAME, CallField.ARGUMENTS))


@pytest.mark.parametrize(
    ("token", "text"),
    [(TOOL_CALLS, "[TOOL_CALLS]"), (ARGS, "[ARGS]"), (THINK, "[THINK]"), (END_THINK, "[/THINK]"), (IMG, ""), (EOS, "")],
)
def test_the_marks_of_a_format_are_text_and_other_control_tokens_are_not(engine: Engine, token: int, text: str) -> None:
    assert answer(engine, job("x", max_tokens=2, **liking(token))) == text * 2


def test_a_grammar_takes_a_mark_as_its_control_token(engine: Engine) -> None:
    wanted = liking(TOOL_CALLS, ARGS, grammar='root ::= "[TOOL_CALLS]rain[ARGS]{}"')

    chunks = read_all(engine.submit(job("x", max_tokens=32, **wanted)))

    assert (text_of(chunks), chunks[-1].finish) == ("[TOOL_CALLS]rain[ARGS]{}", Finish.STOP)
    assert n_tokens(chunks) <= len(["[TOOL_CALLS]", *"rain", "[ARGS]", *"{}", "</s>"])


def test_a_grammar_without_marks_lets_no_mark_through(engine: Engine) -> None:
    wanted = liking(TOOL_CALLS, grammar="root ::= [a-z]{4}")

    text = answer(engine, job("x", max_tokens=32, **wanted))

    assert (len(text), text.isalpha()) == (4, True)


def test_a_mark_begins_a_grammar_that_waits_for_it(engine: Engine) -> None:
    wanted = liking(TOOL_CALLS, grammar='root ::= "[TOOL_CALLS]rain"', grammar_triggers=("[TOOL_CALLS]",))

    assert answer(engine, job("x", max_tokens=32, **wanted)) == "[TOOL_CALLS]rain"


def test_a_call_between_control_tokens_is_a_call(engine: Engine) -> None:
    asked = job(max_tokens=64, prompts=(ASKED,), **liking(TOOL_CALLS, ARGS, END_THINK))
    prepared, parser = prepare(
        Conversation(asked, CallPolicy(CallMode.REQUIRED), parallel_calls=False), engine.models()[0]
    )

    parts = list(parser.parts(read_all(engine.submit(prepared))))

    assert [part.name for part in parts if isinstance(part, CallBegin)] == ["rain"]
    assert "".join(part.piece for part in parts if isinstance(part, CallArguments)) == "{}"
    assert [part for part in parts if isinstance(part, AnswerText) and part.text] == []


def test_thoughts_between_control_tokens_are_told_apart_from_the_text(engine: Engine) -> None:
    wanted = liking(THINK, END_THINK, grammar='root ::= "[THINK]so[/THINK]yes"')
    asked = job(max_tokens=32, prompts=(replace(ASKED, tools=()),), **wanted)
    prepared, parser = prepare(Conversation(asked), engine.models()[0])

    parts = list(parser.parts(read_all(engine.submit(prepared))))

    assert "".join(part.text for part in parts if isinstance(part, Reasoning)) == "so"
    assert "".join(part.text for part in parts if isinstance(part, AnswerText)) == "yes"


def native_of(engine: Engine) -> NativeEngine:
    """Returns the native part of an engine, to call it at a wrong time."""
    native = engine._native
    assert native is not None
    return native


def test_tokens_that_end_an_answer_are_not_shown(tmp_path) -> None:
    with opened(model=str(write_llama(tmp_path / "bytes.gguf", special=MARKS)), slots=1) as fresh:
        native = native_of(fresh)

        native.show_tokens([EOS, ARGS])

        assert [native.token_text(token) for token in (EOS, ARGS, THINK)] == [b"", b"[ARGS]", b""]


@pytest.mark.parametrize("token", [-1, 264, 2**31 - 1])
def test_a_token_that_a_model_does_not_have_cannot_be_shown(tmp_path, token: int) -> None:
    with (
        opened(model=str(write_llama(tmp_path / "bytes.gguf", special=(*MARKS, UNMARKED))), slots=1) as fresh,
        pytest.raises(errors.Refused, match="none of the model's"),
    ):
        native_of(fresh).show_tokens([ARGS, token])


def test_tokens_are_shown_before_the_first_task_alone(engine: Engine) -> None:
    answer(engine, job("x", max_tokens=1))

    with pytest.raises(errors.Refused, match="before the first task"):
        native_of(engine).show_tokens([IMG])
