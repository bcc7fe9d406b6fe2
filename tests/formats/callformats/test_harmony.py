"""Headers of calls in gpt-oss's format: the channel stands before the name or behind it, in one place only."""

from __future__ import annotations

from typing import Any

import pytest

from corosrv.contracts.jobs import Job, Messages, ModelCard, Sampling
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation
from corosrv.dialects.chat.prepare import prepare
from tests.formats.callformats.answers import Answer
from tests.formats.callformats.test_templates import read, syntax, traits
from tests.support.oracle import shared_oracle

GPT_OSS = "openai-gpt-oss-120b"
TOOL = {"type": "function", "function": {"name": "rain", "parameters": {"properties": {"days": {"type": "integer"}}}}}
ARGUMENTS = '{"days": 1}'
CHANNELS = ("<|channel|>commentary", "<|channel|>analysis")
KINDS = (" <|constrain|>json", " json", "")
HEADERS = [
    *(f"{channel} to=functions.rain{kind}<|message|>" for channel in CHANNELS for kind in KINDS),
    *(f" to=functions.rain{channel}{kind}<|message|>" for channel in CHANNELS for kind in KINDS),
]
MIXTURES = [
    *(f"{one} to=functions.rain{other}{kind}<|message|>" for one in CHANNELS for other in CHANNELS for kind in KINDS),
    *(f" to=functions.rain{kind}<|message|>" for kind in KINDS),
    "<|channel|>final to=functions.rain<|message|>",
    " to=functions.rain<|channel|>commentary",
]
CALL: list[tuple[str, Any]] = [("rain", {"days": 1})]


def sampling(mode: CallMode) -> Sampling:
    found = traits(GPT_OSS)
    card = ModelCard(
        "m", created=1, capabilities=frozenset(("completion", "chat", "tools")),
        call_format=found.call_format, answer_format=found.answer,
    )  # fmt: skip
    prompt = Messages(({"role": "user", "content": "Hi"},), (TOOL,))
    job, _ = prepare(Conversation(Job((prompt,)), CallPolicy(mode)), card)
    return job.sampling


@pytest.mark.timeout(300)  # the first of them builds the native recogniser
def test_a_forced_call_has_a_channel_before_the_name_or_behind_it():
    texts = [header + ARGUMENTS for header in (*HEADERS, *MIXTURES)]

    verdicts = shared_oracle().verdicts(sampling(CallMode.REQUIRED).grammar, texts)

    assert verdicts == "y" * len(HEADERS) + "n" * len(MIXTURES)


@pytest.mark.timeout(300)
def test_a_call_begun_behind_a_channel_has_no_second_one():
    chosen = sampling(CallMode.AUTO)
    before = "<|channel|>commentary to=functions."

    verdicts = shared_oracle().verdicts(
        chosen.grammar, [header.lstrip() + ARGUMENTS for header in (*HEADERS, *MIXTURES)]
    )

    # The grammar reads from the beginning of the longest trigger: the channel is part of it.
    assert before in chosen.grammar_triggers
    assert verdicts == "y" * len(HEADERS) + "n" * len(MIXTURES)


@pytest.mark.parametrize("header", HEADERS)
def test_a_call_is_read_behind_each_header_wherever_it_is_cut(header):
    for before, thoughts in (("", ""), ("<|channel|>analysis<|message|>Well<|end|><|start|>assistant", "Well")):
        text = before + header + ARGUMENTS
        for pieces in ([text], list(text)):
            assert read(syntax(traits(GPT_OSS)), pieces) == Answer(thoughts, "", CALL)


@pytest.mark.parametrize("header", MIXTURES)
def test_a_mixture_of_both_headers_is_no_call(header):
    text = header + ARGUMENTS

    for pieces in ([text], list(text)):
        assert read(syntax(traits(GPT_OSS)), pieces).calls == []
