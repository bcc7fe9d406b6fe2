"""Tests that answers are read as llama-server reads them: the cases of llama.cpp's own tests of its parsers."""

from __future__ import annotations

import json

import pytest

from corosrv.contracts.jobs import Chunk, Finish, Job, Messages, ModelCard
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation, JsonFormat
from corosrv.dialects.chat.prepare import prepare
from tests.formats.callformats.answers import Answer, collect
from tests.formats.callformats.test_templates import traits
from tests.support import llama_templates
from tests.support.llama_chat_cases import ChatCase, read_cases, tools_of

# Lines of the answers that cannot come here, or are meant to be read otherwise, by template.
DIFFERENCES = {
    ("mistralai-Ministral-3-14B-Reasoning-2512", "```json"): "a form of the answer allows no fence around it",
    ("meta-llama-Llama-3.1-8B-Instruct", "```json"): "a form of the answer allows no fence around it",
    ("Apriel-1.6-15b-Thinker-fixed", "[BEGIN FINAL RESPONSE]"): "words of the prompt are no part of the thoughts",
    ("openai-gpt-oss-120b", "container.exec"): "calls of tools that were not offered stay in the text",
    ("openai-gpt-oss-120b", "to=python"): "calls of tools that were not offered stay in the text",
    **{
        (name, "Calendar.create_event"): "names of tools have no dots"
        for name in ("LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct")
    },
    ("LFM2.5-8B-A1B", "Let me think about <|tool_call_start|>"): "after its mark nothing but a call can be drawn",
    ("google-gemma-4-31B-it", "<|channel><|channel>thought"): "a mark that begins nothing stays in the text",
    ("CohereForAI-c4ai-command-r-plus-tool_use", "<|CHATBOT_TOKEN|>"): "the prompt ends with this token",
    ("CohereForAI-c4ai-command-r-plus-tool_use", "Action:"): "calls are indented, as the template does",
    ("Kimi-K2-Instruct", " thinking</think>"): "by its template the model does not think",
    ("meetkai-functionary-medium-v3.2", "all\n"): "thoughts are not split, and so no text around the answer",
}
# Of tokens that end an answer, which the engine keeps to itself.
ENDS = ("<|eot|>", "<|role_end|>")
CASES = read_cases()[0] if llama_templates.are_here() else ()


def splits_thoughts(case: ChatCase) -> bool:
    return not case.options.get("reasoning_format", "COMMON_REASONING_FORMAT_NONE").endswith("NONE")


def is_silenced(case: ChatCase) -> bool:
    """Tells whether the prompt keeps the model from thinking here, as llama-server's does not."""
    answer = traits(case.template).answer
    return not case.options.get("enable_thinking", True) and answer.can_be_silenced and not answer.tells_no_thoughts


def is_continued(case: ChatCase) -> bool:
    """Tells whether an answer goes on with the message that the request ends with."""
    return "continue_final_message" in case.options


def continues_thoughts(case: ChatCase) -> bool:
    """Tells whether an answer goes on with the thoughts of that message."""
    named = str(case.options.get("continue_final_message"))
    return named.endswith("REASONING") or (named.endswith("AUTO") and not case.options["messages"][-1]["content"])


def is_read_alike(case: ChatCase) -> bool:
    """Tells whether a case is to be read here as llama-server reads it."""
    if "is_partial" in case.options:
        return False  # unfinished answers have tests of their own
    if is_continued(case) and not continues_thoughts(case):
        return True
    if any(case.template == template and words in case.answer for template, words in DIFFERENCES):
        return False
    found = traits(case.template).answer
    if case.expected.calls and "tools" not in case.options:
        return False
    if splits_thoughts(case):
        return not (is_silenced(case) and found.thought_tags and found.thought_tags[0] in case.answer)
    # The tag that the prompt has opened thoughts with is not given again.
    return not (found.opens_thoughts and case.expected.content.startswith((found.thought_tags or ("",))[0]))


COMPARED = [case for case in CASES if is_read_alike(case)]


def conversation(case: ChatCase) -> Conversation:
    options = case.options
    arguments = {} if options.get("enable_thinking", True) else {"enable_thinking": False}
    messages: tuple[dict[str, str], ...] = ({"role": "user", "content": "Hey"},)
    if is_continued(case):
        begun = options["messages"][-1]
        thoughts = {"reasoning_content": begun["reasoning"]} if continues_thoughts(case) else {}
        messages += ({"role": "assistant", "content": "" if thoughts else begun["content"], **thoughts},)
    prompt = Messages(
        messages, tools_of(case), add_generation_prompt=not is_continued(case), continue_final=is_continued(case),
        continue_thoughts=continues_thoughts(case), template_arguments=arguments,
    )  # fmt: skip
    is_required = str(options.get("tool_choice")).endswith("REQUIRED")
    return Conversation(
        Job((prompt,)),
        tool_choice=CallPolicy(CallMode.REQUIRED if is_required else CallMode.AUTO),
        echo=is_continued(case),
        answer_format=JsonFormat(json.loads(options["json_schema"])) if "json_schema" in options else None,
    )


def read(case: ChatCase, pieces: list[str]) -> Answer:
    """Reads an answer that comes in these pieces; blanks around it are left out."""
    found = traits(case.template)
    card = ModelCard(
        "m", 1, capabilities=frozenset(("completion", "chat", "tools")),
        call_format=found.call_format, answer_format=found.answer, splits_reasoning=splits_thoughts(case),
    )  # fmt: skip
    _, parser = prepare(conversation(case), card)
    chunks = [*(Chunk(0, piece, 1) for piece in pieces), Chunk(0, "", 1, Finish.STOP)]
    thoughts, text, calls = collect(parser.parts(chunks))
    return Answer(thoughts.strip(), text.strip(), calls)


@pytest.mark.parametrize("case", COMPARED, ids=lambda case: f"{case.template}-{case.line}")
def test_an_answer_is_read_as_llama_server_reads_it_wherever_it_is_cut(case):
    expected = case.expected
    answer = case.answer
    for end in ENDS:
        answer = answer.removesuffix(end)
    wanted = (
        # Those of a message whose text goes on are not given again.
        "" if is_continued(case) and not continues_thoughts(case) else expected.reasoning.strip(),
        expected.content.strip(),
        [(name, json.loads(arguments or "{}")) for name, arguments in expected.calls],
    )

    assert read(case, [answer]) == wanted
    assert read(case, list(answer)) == wanted


def test_nearly_all_cases_are_read_and_compared():
    if not llama_templates.are_here():
        pytest.skip("llama.cpp's tests came after these were collected; the next run has them")
    cases, n_not_read = read_cases()

    assert len(cases) > 440
    assert n_not_read < 10
    assert len(COMPARED) > 410
