"""Tests over all templates of llama.cpp that what one renders of calls and thoughts is read back, and allowed."""

# ruff: noqa: RUF001  # DeepSeek has bars of its own
from __future__ import annotations

import dataclasses
import json
from functools import cache
from typing import Any

import pytest

from corosrv.contracts.jobs import Chunk, Finish, Job, Messages, ModelCard
from corosrv.dialects.chat.choice import Syntax
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation
from corosrv.dialects.chat.prepare import SyntaxParser, prepare
from corosrv.dialects.chat.tool_schema import element_types, string_members
from corosrv.formats.callformats.description import ArgumentRow, ElementTree, Spelling, markers_for
from corosrv.formats.callformats.learn_answer import NAME, OTHER_NAME, THOUGHT, USER, Probe, Rendering, tool
from corosrv.models.engine.jinja_template import JinjaTemplate
from corosrv.models.engine.sandbox import TemplateLimits
from corosrv.models.engine.traits import Traits, find_traits
from tests.formats.callformats.answers import Answer, collect
from tests.support import llama_templates
from tests.support.oracle import shared_oracle

# Templates that show no calls at all.
WITHOUT_CALLS = {
    "HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct", "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct",
}  # fmt: skip
# Texts of the tokens that end answers of these models, which a vocabulary tells the engine.
ENDS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "</s>", "<|call|>", "<|calls|>", "<|eot|>", "<|return|>",
    "<|endoftext|>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>", "<SPECIAL_12>", "<|end_of_msg|>",
    "<｜hy_eos:opensource｜>", "<turn|>", "<seed:eos>", "<end_of_sentence>", "[e~[", "\n\n<sep>", "<|end_of_text|>",
    "<|role_end|>", "</assistant>",
)  # fmt: skip
# What follows a call with which a conversation ends.
CUTS = (*ENDS, "\n<|START_OF_TURN_TOKEN|>")
ARGUMENTS: dict[str, Any] = {
    "text": 'one "two" <b>\nthree',
    "number": 42,
    "flag": True,
    "object": {"in": [1, "x"], "empty": {}},
    "list": [1.5, "a, b"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "number": {"type": "integer"},
        "flag": {"type": "boolean"},
        "object": {
            "type": "object",
            "properties": {
                "in": {"type": "array", "items": {"type": ["integer", "string"]}},
                "empty": {"type": "object", "properties": {}},
            },
        },
        "list": {"type": "array", "items": {"type": ["number", "string"]}},
    },
}
CALLS = {
    "one": [(NAME, ARGUMENTS)],
    "none": [(NAME, {})],
    "two": [(NAME, {"text": "  spaced "}), (OTHER_NAME, ARGUMENTS)],
}
# Templates that write lists and objects as their models are not asked to: as Python has them, and indented far.
WRITES_FLAT_ARGUMENTS = {"LFM2.5-8B-A1B", "CohereForAI-c4ai-command-r-plus-tool_use"}
TOOLS = [{**tool(name), "function": {**tool(name)["function"], "parameters": SCHEMA}} for name in (NAME, OTHER_NAME)]


# All processes of a test run have to collect the same, so nothing is downloaded here: `make test` does that before.
NAMES = llama_templates.names() if llama_templates.are_here() else ["none are here"]


@pytest.fixture(params=NAMES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    if request.param not in llama_templates.names():
        pytest.skip("llama.cpp's chat templates came after the tests were collected; the next run has them")
    return str(request.param)


@cache
def rendering(name: str) -> Rendering:
    template = JinjaTemplate(
        llama_templates.source_of(name), {"bos_token": "<s>", "eos_token": "</s>"}, TemplateLimits()
    )
    return template.render


@cache
def traits(name: str) -> Traits:
    return find_traits(llama_templates.source_of(name), rendering(name), ENDS)


def answer_of(name: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Returns what a model has to write so that its template would render these calls."""
    found = traits(name)
    probe = Probe(rendering(name), seconds=9)
    rendered, form = probe.calls(found.manner, *calls), found.call_format
    start = rendered.rfind(form.start, 0, rendered.find(calls[0][0], len(probe.prompt()) - len(form.start) - 9))
    text = rendered[start:] if form.start else rendered[len(probe.prompt()) :]
    text = text[: min((text.find(end) for end in CUTS if end in text), default=len(text))]
    return text[: text.rfind(form.end) + len(form.end)] if form.end else text


def as_read(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments as they are read back: in elements, what may be a string is one."""
    if not isinstance(traits(name).call_format.arguments, ElementTree) or "list" not in arguments:
        return arguments
    return {**arguments, "object": {"in": ["1", "x"], "empty": {}}, "list": ["1.5", "a, b"]}


def syntax(found: Traits, opens: bool = False) -> Syntax:
    return Syntax(
        thought_tags=found.thought_tags,
        begins_in_thoughts=opens,
        tool_format=found.call_format,
        markers=markers_for(found.call_format, (NAME, OTHER_NAME)),
        edges=found.answer.edges,
        element_types=dict.fromkeys((NAME, OTHER_NAME), element_types(SCHEMA, "item")),
        string_members=string_members((name, SCHEMA) for name in (NAME, OTHER_NAME)),
    )


def read(syntax: Syntax, pieces: list[str]) -> Answer:
    """Reads an answer that comes in these pieces."""
    chunks = [*(Chunk(0, piece, 1) for piece in pieces), Chunk(0, "", 1, Finish.STOP)]
    return collect(SyntaxParser(syntax).parts(chunks))


def is_native(name: str) -> bool:
    return traits(name).shows_calls


def test_all_formats_of_calls_are_learnt_but_those_named_here():
    not_native = {name for name in llama_templates.names() if not is_native(name)}

    assert not_native == WITHOUT_CALLS


@pytest.mark.parametrize("calls", CALLS)
def test_calls_that_a_template_renders_are_read_back_whole_and_cut_at_every_character(name, calls):
    found = traits(name)
    if not found.shows_calls or (calls == "two" and found.call_format.is_single):
        return

    text = answer_of(name, CALLS[calls])

    for pieces in ([text], list(text)):
        assert read(syntax(found), pieces) == ("", "", [(tool, as_read(name, given)) for tool, given in CALLS[calls]])


def test_thoughts_that_a_template_renders_are_read_back_wherever_they_are_cut(name):
    found = traits(name)
    if found.thought_tags is None:
        return
    opening, closing = found.thought_tags
    answer = found.answer
    opened = "" if found.opens_thoughts else opening
    text = f"{opened}\n{THOUGHT} < [\n{closing}{answer.turn}{answer.text_opening}Yes, <b>.{answer.text_closing}"

    for pieces in ([text], list(text)):
        assert read(syntax(found, found.opens_thoughts), pieces) == (f"{THOUGHT} < [", "Yes, <b>.", [])


def test_the_tags_of_thoughts_are_those_that_a_template_renders(name):
    found = traits(name)
    probe = Probe(rendering(name), seconds=9)
    call = {"id": found.manner.ids[0], "type": "function", "function": {"name": NAME, "arguments": {}}}
    turn = {"role": "assistant", "content": "", found.answer.thought_member: THOUGHT, "tool_calls": [call]}
    rendered = probe.render([USER, turn], tools=TOOLS)
    if THOUGHT not in rendered:
        return

    assert found.thought_tags is not None
    opening, closing = found.thought_tags
    before, _, behind = rendered.partition(THOUGHT)
    assert before.rstrip().endswith(opening) or (found.opens_thoughts and probe.prompt().rstrip().endswith(opening))
    assert behind.lstrip().startswith(closing)


def forced(found: Traits, is_parallel: bool) -> str:
    """Returns the grammar of an answer that has to call a tool."""
    card = ModelCard(
        "m", created=1, capabilities=frozenset(("completion", "chat", "tools")),
        call_format=found.call_format, answer_format=dataclasses.replace(found.answer, opens_thoughts=False),
    )  # fmt: skip
    prompt = Messages(({"role": "user", "content": "Hi"},), tuple(TOOLS))
    policy = CallPolicy(CallMode.REQUIRED)
    job, _ = prepare(Conversation(Job((prompt,)), policy, parallel_calls=is_parallel), card)
    return job.sampling.grammar


def as_given(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments as a template is given them: where it writes objects as Python does, they are JSON text."""
    form = traits(name).call_format.arguments
    is_kept = isinstance(form, ArgumentRow) and form.containers is Spelling.PYTHON and not form.quote
    return {
        key: json.dumps(value) if is_kept and isinstance(value, (dict, list)) else value
        for key, value in arguments.items()
        if name not in WRITES_FLAT_ARGUMENTS or not isinstance(value, (dict, list))
    }


@pytest.mark.timeout(300)  # the first of them builds the native recogniser
@pytest.mark.parametrize("calls", CALLS)
def test_a_required_call_lets_the_model_write_what_its_template_renders(name, calls):
    found = traits(name)
    if not found.shows_calls or (calls == "two" and found.call_format.is_single):
        return
    given = [(tool, as_given(name, arguments)) for tool, arguments in CALLS[calls]]
    text = answer_of(name, given)

    assert shared_oracle().verdicts(forced(found, len(given) > 1), [text]) == "y"
