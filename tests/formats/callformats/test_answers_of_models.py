"""Answers as models of llama.cpp's templates give them, which may differ from what the templates render."""

# ruff: noqa: RUF001  # DeepSeek has bars of its own
from __future__ import annotations

from typing import Any

import pytest

from corosrv.dialects.chat.choice import Syntax
from corosrv.formats.callformats.description import markers_for
from tests.formats.callformats.test_templates import read, traits

MINISTRAL, GPT_OSS = "mistralai-Ministral-3-14B-Reasoning-2512", "openai-gpt-oss-120b"
RAIN: list[tuple[str, Any]] = [("rain", {"days": 1})]
BOTH: list[tuple[str, Any]] = [*RAIN, ("sun", {"days": 1, "hours": 2})]
EMPTY: list[tuple[str, Any]] = [("sun", {})]
# Template, answer, and its thoughts, text and calls.
ANSWERS: list[tuple[str, str, str, str, list[tuple[str, Any]]]] = [
    ("mistralai-Mistral-Nemo-Instruct-2407",
     '[TOOL_CALLS][{"name": "rain", "arguments": {"days": 1}, "id": "123456789"}]', "", "", RAIN),
    ("unsloth-mistral-Devstral-Small-2507", '[TOOL_CALLS]rain[ARGS]{"days": 1}', "", "", RAIN),
    ("unsloth-mistral-Devstral-Small-2507", 'Let me see.[TOOL_CALLS]rain[ARGS]{"days": 1}', "", "Let me see.", RAIN),
    (MINISTRAL, "[THINK]Well,\nrain[/THINK]It is\nwet.", "Well,\nrain", "It is\nwet.", []),
    (MINISTRAL, '[THINK]Well[/THINK][TOOL_CALLS]rain[ARGS]{"days":1}', "Well", "", RAIN),
    (MINISTRAL,
     '[TOOL_CALLS]rain[ARGS]{"days": 1}[TOOL_CALLS]sun[ARGS]{"days": 1, "hours": 2}', "", "", BOTH),
    ("meetkai-functionary-medium-v3.1", '<function=rain>{"days": 1}</function>', "", "", RAIN),
    ("meetkai-functionary-medium-v3.2", 'rain\n{"days": 1}', "", "", RAIN),
    (GPT_OSS,
     "<|channel|>analysis<|message|>Well<|end|><|start|>assistant<|channel|>final<|message|>Wet.", "Well", "Wet.", []),
    (GPT_OSS, ' to=functions.rain<|channel|>analysis<|message|>{"days": 1}', "", "", RAIN),
    (GPT_OSS, ' to=functions.rain<|channel|>analysis <|constrain|>json<|message|>{"days": 1}', "", "", RAIN),
    (GPT_OSS, '<|channel|>commentary to=functions.rain<|message|>{"days": 1}', "", "", RAIN),
    (GPT_OSS, '<|channel|>analysis to=functions.rain<|message|>{"days": 1}', "", "", RAIN),
    (GPT_OSS,
     "<|channel|>analysis<|message|>Well<|end|><|start|>assistant<|channel|>commentary to=functions.rain "
     '<|constrain|>json<|message|>{"days": 1}', "Well", "", RAIN),
    (GPT_OSS,
     "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.rain "
     '<|constrain|>json<|message|>{"days": 1}', "", "Let me see.", RAIN),
    (GPT_OSS,
     "<|channel|>analysis<|message|>Well<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
     '<|start|>assistant<|channel|>commentary to=functions.rain <|constrain|>json<|message|>{"days": 1}',
     "Well", "Let me see.", RAIN),
    (GPT_OSS,
     "<|channel|>analysis<|message|>Well<|end|><|start|>assistant<|channel|>commentary<|message|>It rains.<|end|>"
     "<|start|>assistant<|channel|>final<|message|> Wet.", "Well", "It rains.Wet.", []),
    ("Qwen3-Coder",
     "<tool_call>\n<function=rain>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>", "", "", RAIN),
    ("Qwen3-Coder",
     "<tool_call>\n<function=rain>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
     "<function=sun>\n<parameter=days>\n1\n</parameter>\n<parameter=hours>\n2\n</parameter>\n</function>\n</tool_call>",
     "", "", BOTH),
    ("Qwen3-Coder",
     "<function=rain>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>", "", "", RAIN),
    ("deepseek-ai-DeepSeek-V3.1",
     '<think>Well</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>rain<｜tool▁sep｜>{"days": 1}<｜tool▁call▁end｜>'
     "<｜tool▁calls▁end｜>", "Well", "", RAIN),
    ("GLM-4.7-Flash",
     "<think>Well</think><tool_call>rain<arg_key>days</arg_key><arg_value>1</arg_value></tool_call>", "Well", "", RAIN),
    ("moonshotai-Kimi-K2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.rain:0<|tool_call_argument_begin|>"
     '{"days": 1}<|tool_call_end|><|tool_calls_section_end|>', "", "", RAIN),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use",
     "<|START_THINKING|>Well<|END_THINKING|><|START_RESPONSE|>It is.<|END_RESPONSE|>", "Well", "It is.", []),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use",
     '<|START_THINKING|>Well<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "rain", '
     '"parameters": {"days": 1}}\n]<|END_ACTION|>', "Well", "", RAIN),
    ("MiniMax-M2", '<think>Well\n</think>\n\n<minimax:tool_call>\n<invoke name="sun">\n</invoke>\n</minimax:tool_call>',
     "Well", "", EMPTY),
    ("MiniMax-M2", '<minimax:tool_call>\n<invoke name="rain">\n<parameter name="days">1</parameter>\n</invoke>\n'
     "</minimax:tool_call>", "", "", RAIN),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "thoughts", "text", "calls"), ANSWERS)
def test_an_answer_of_a_model_is_read_wherever_it_is_cut(name, answer, thoughts, text, calls):
    found = traits(name)
    syntax = Syntax(
        thought_tags=found.thought_tags,
        tool_format=found.call_format,
        markers=markers_for(found.call_format, ("rain", "sun")),
        edges=found.answer.edges,
    )

    for pieces in ([answer], list(answer)):
        assert read(syntax, pieces) == (thoughts, text, calls)
