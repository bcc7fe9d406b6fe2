"""Budgets of thoughts, kept by the engine for the real model in the formats of llama.cpp's templates."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Messages, ModelCard, Text, ThoughtBudget
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation, JsonFormat
from corosrv.dialects.chat.parts import AnswerText, CallArguments, Part, Reasoning
from corosrv.dialects.chat.prepare import prepare
from corosrv.formats.callformats.description import AnswerFormat
from corosrv.formats.structured.gbnf import literal
from corosrv.models.engine import Engine
from corosrv.models.engine.traits import Traits
from tests.formats.callformats.test_templates import traits
from tests.support.engines import GREEDY, job, read_all, text_of
from tests.support.waiting import wait_until

GPT_OSS = "openai-gpt-oss-120b"
TEMPLATES = (
    GPT_OSS, "Qwen-QwQ-32B", "google-gemma-4-31B-it", "mistralai-Ministral-3-14B-Reasoning-2512",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Qwen-Qwen3-0.6B", "Kimi-K2-Thinking", "muse-glimmer",
)  # fmt: skip
QUESTION = "Question: why is the sea blue?\nThoughts: well, "
PLAIN = ModelCard("m", 1, capabilities=frozenset(("tools",)))
THINKER = replace(PLAIN, answer_format=AnswerFormat(("<think>", "</think>"), opens_thoughts=True))
SCHEMA = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


@cache
def card(name: str) -> ModelCard:
    learnt: Traits = traits(name)
    abilities = frozenset(("completion", "chat", "tools"))
    return ModelCard("m", 1, capabilities=abilities, call_format=learnt.call_format, answer_format=learnt.answer)


def conversation(model: ModelCard, tokens: int | None, **chosen: object) -> Conversation:
    """Asks for an answer of 40 tokens whose thoughts have this budget, and that has some."""
    tools = chosen.pop("tools", ())
    prompt = Messages(({"role": "user", "content": "?"},), tools)
    sampling = GREEDY
    if not (model.opens_reasoning or tools or "answer_format" in chosen):
        opening = literal(model.reasoning_tags[0])
        sampling = replace(GREEDY, grammar=f"root ::= {opening} [^\\x00]*")
    asked = job("", prompts=(prompt,), sampling=sampling, max_tokens=chosen.pop("max_tokens", 40))
    return Conversation(asked, thought_tokens=tokens, **chosen)


def parts_of(engine: Engine, model: ModelCard, asked: Conversation) -> list[Part]:
    return parts_and_tokens(engine, model, asked)[0]


def parts_and_tokens(
    engine: Engine, model: ModelCard, asked: Conversation, *, late: bool = False
) -> tuple[list[Part], int]:
    """Returns the parts of the answer, and the tokens counted as its thoughts'. `late`: it is read when it is whole."""
    prepared, parser = prepare(asked, model, find_vocabulary=lambda: engine.vocabulary(None))
    reader = engine.submit(replace(prepared, prompts=(Text(QUESTION),)))
    if late:
        wait_until(lambda: not any(slot.is_busy for slot in engine.slots()), "the answer is whole")
    chunks = read_all(reader)
    return list(parser.parts(chunks)), parser.reasoning_tokens


def thoughts(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def text(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, AnswerText))


def n_tokens(engine: Engine, text: str) -> int:
    return len(engine.vocabulary(None).tokenize(text, False, True, "text"))


@pytest.mark.model
@pytest.mark.parametrize("name", TEMPLATES)
def test_thoughts_end_at_their_budget_and_the_answer_goes_on(smollm2: Engine, name: str) -> None:
    model = card(name)

    parts, spent = parts_and_tokens(smollm2, model, conversation(model, 4))

    assert 0 < n_tokens(smollm2, thoughts(parts)) <= 4
    assert 4 < spent <= 4 + sum(n_tokens(smollm2, tag) for tag in model.reasoning_tags)
    assert parts_and_tokens(smollm2, model, conversation(model, 4), late=True)[1] == spent
    assert text(parts)
    assert not any(edge in text(parts) for edge in model.answer_format.edges)


@pytest.mark.model
def test_a_model_that_no_prompt_silences_is_silenced_by_the_engine(smollm2: Engine) -> None:
    model = card(GPT_OSS)

    for asked in (conversation(model, 0), conversation(model, None, thinks=False)):
        parts = parts_of(smollm2, model, asked)

        assert (thoughts(parts), bool(text(parts))) == ("", True)


@pytest.mark.model
@pytest.mark.parametrize("name", [GPT_OSS, "Qwen-QwQ-32B"])
def test_a_form_of_the_answer_follows_thoughts_that_are_ended(smollm2: Engine, name: str) -> None:
    model = card(name)

    parts = parts_of(smollm2, model, conversation(model, 4, answer_format=JsonFormat(SCHEMA), max_tokens=80))

    assert isinstance(json.loads(text(parts))["blue"], bool)


@pytest.mark.model
def test_a_call_follows_thoughts_that_are_ended(smollm2: Engine) -> None:
    model = card("Qwen-QwQ-32B")
    asked = conversation(model, 4, tools=(TOOL,), tool_choice=CallPolicy(CallMode.REQUIRED), max_tokens=80)

    parts = parts_of(smollm2, model, asked)

    assert thoughts(parts)
    pieces = "".join(part.piece for part in parts if isinstance(part, CallArguments))
    assert isinstance(json.loads(pieces)["blue"], bool)


@pytest.mark.model
def test_the_last_words_of_thoughts_are_the_client_s_and_no_control_tokens(smollm2: Engine) -> None:
    model = card("Qwen-QwQ-32B")
    message = "Time is up. <|im_end|>"

    parts = parts_of(smollm2, model, conversation(model, 3, thought_message=message))

    assert thoughts(parts).endswith(message)
    assert text(parts)


def test_a_model_without_thoughts_has_no_budget() -> None:
    prepared, _ = prepare(conversation(PLAIN, 4, tools=(TOOL,)), PLAIN)

    assert prepared.sampling.thoughts is None


def test_a_budget_of_nothing_asks_the_template_for_no_thoughts() -> None:
    prepared, _ = prepare(conversation(THINKER, 0), THINKER)

    assert prepared.prompts[0].template_arguments == {"enable_thinking": False}
    assert prepared.sampling.thoughts is None


def test_the_server_s_budget_holds_where_a_conversation_has_none_of_its_own() -> None:
    model = replace(THINKER, thought_tokens=4, thought_message="So.")

    def budget(**chosen: object) -> ThoughtBudget | None:
        prepared, _ = prepare(conversation(model, chosen.pop("tokens", None), **chosen), model)
        return prepared.sampling.thoughts

    assert budget() == ThoughtBudget(4, "</think>", message="So.")
    assert budget(tokens=9) == ThoughtBudget(9, "</think>", message="So.")
    assert budget(thought_message="Now.") == ThoughtBudget(4, "</think>", message="Now.")
    assert budget(thought_message="") == ThoughtBudget(4, "</think>")


def test_a_server_s_budget_of_nothing_asks_the_template_for_no_thoughts() -> None:
    model = replace(THINKER, thought_tokens=0)

    prepared, _ = prepare(conversation(model, None), model)

    assert prepared.prompts[0].template_arguments == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"tokens": -1}, "0 or more"), ({"closing": ""}, "a text that ends them")],
)
def test_a_budget_that_cannot_be_kept_is_refused(engine: Engine, changes: dict[str, object], words: str) -> None:
    budget = replace(ThoughtBudget(1, "</think>"), **changes, message="x")

    with pytest.raises(Refused, match=words):
        engine.submit(job(sampling=replace(GREEDY, thoughts=budget)))


def test_each_answer_of_a_job_has_the_budget(engine: Engine) -> None:
    budget = ThoughtBudget(3, "</think>")

    chunks = read_all(engine.submit(job(sampling=replace(GREEDY, thoughts=budget), n=2, max_tokens=20)))

    for number in (0, 1):
        thoughts, end, _ = text_of(chunks, number).partition("</think>")
        assert (len(thoughts.split()), end) == (3, "</think>")
