"""Conversations to jobs: the answers that their grammars allow are the answers that were asked for."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from corosrv.base.errors import NotOffered, Refused
from corosrv.contracts.jobs import Chunk, Job, Messages, ModelCard, Sampling
from corosrv.dialects.chat.conversation import CallMode, CallPolicy, Conversation, JsonFormat, ToolPlaces, tool
from corosrv.dialects.chat.parts import AnswerText, CallArguments, CallBegin, End, Part, Reasoning
from corosrv.dialects.chat.prepare import TextParser, prepare
from corosrv.formats.callformats.description import AnswerFormat
from corosrv.models.engine import Engine
from tests.support.call_formats import FORMATS
from tests.support.engines import opened, read_all
from tests.support.oracle import Oracle, oracle

CARD = ModelCard("m", created=1, capabilities=frozenset(("completion", "chat", "tools")))
TAGS = ("<think>", "</think>")
THINKER = dataclasses.replace(CARD, answer_format=AnswerFormat(thought_tags=TAGS))
OPENED = dataclasses.replace(CARD, answer_format=AnswerFormat(thought_tags=TAGS, opens_thoughts=True))

PLACE = {"type": "object", "properties": {"at": {"enum": ["Köln", "Ulm"]}}, "required": ["at"]}
RAIN = tool("rain", "Tells whether it rains.", PLACE)
NOW = tool("now", None, None)
TOOLS = (RAIN, NOW)
FORCED = CallPolicy(CallMode.REQUIRED)
PLACE_FORMAT = JsonFormat(PLACE)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Makes up its text, in which a character is a token."""
    with opened(ctx=4096) as engine:
        yield engine


def conversation(tools: tuple[dict[str, Any], ...] = (), grammar: str = "", **asked: Any) -> Conversation:
    prompt = Messages(({"role": "user", "content": "Rain?"},), tools)
    return Conversation(Job((prompt,), max_tokens=2000, sampling=Sampling(grammar=grammar)), **asked)


def parts(engine: Engine, asked: Conversation, card: ModelCard = CARD, seed: int = 1) -> list[Part]:
    """What the made-up model answers: anything at all that the grammar allows."""
    job, parser = prepare(asked, card)
    seeded = dataclasses.replace(job, sampling=dataclasses.replace(job.sampling, seed=seed))
    return list(parser.parts(read_all(engine.submit(seeded))))


def calls(told: list[Part]) -> list[tuple[str, Any]]:
    """Names and arguments, which have to be JSON."""
    found: list[tuple[str, list[str]]] = []
    for part in told:
        if isinstance(part, CallBegin):
            found.append((part.name, []))
        elif isinstance(part, CallArguments):
            found[part.call][1].append(part.piece)
    return [(name, json.loads("".join(pieces))) for name, pieces in found]


def text(told: list[Part]) -> str:
    return "".join(part.text for part in told if isinstance(part, AnswerText))


def reason(told: list[Part]) -> str:
    assert isinstance(told[-1], End)
    return told[-1].reason


def is_right(call: tuple[str, Any]) -> bool:
    name, arguments = call
    return arguments == {} if name == "now" else arguments in ({"at": "Köln"}, {"at": "Ulm"})


@pytest.mark.parametrize("tool_format", ["hermes", "mistral", "llama3"])
@pytest.mark.parametrize("seed", range(4))
def test_a_forced_answer_is_calls_and_nothing_else(engine, tool_format, seed):
    card = dataclasses.replace(CARD, call_format=FORMATS[tool_format])

    told = parts(engine, conversation(TOOLS, tool_choice=FORCED), card, seed)

    assert calls(told)
    assert all(map(is_right, calls(told)))
    assert (text(told), reason(told)) == ("", "tool_calls")


@pytest.mark.parametrize("asked", [{"parallel_calls": False}, {"tool_choice": CallPolicy(CallMode.REQUIRED, "now")}])
@pytest.mark.parametrize("seed", range(8))
def test_one_call_is_one_call(engine, asked, seed):
    told = parts(engine, conversation(TOOLS, **{"tool_choice": FORCED, **asked}), seed=seed)

    assert len(calls(told)) == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_named_tool_is_the_one_that_is_called(engine, seed):
    told = parts(engine, conversation(TOOLS, tool_choice=CallPolicy(CallMode.REQUIRED, "now")), seed=seed)

    assert calls(told) == [("now", {})]


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_of_a_schema_is_valid_for_it(engine, seed):
    told = parts(engine, conversation(answer_format=PLACE_FORMAT), seed=seed)

    assert json.loads(text(told)) in ({"at": "Köln"}, {"at": "Ulm"})
    assert reason(told) == "stop"


def test_an_answer_of_json_is_an_object(engine):
    assert isinstance(json.loads(text(parts(engine, conversation(answer_format=JsonFormat())))), dict)


@pytest.mark.parametrize("seed", range(12))
def test_an_answer_that_may_call_or_be_json_is_either(engine, seed):
    told = parts(engine, conversation(TOOLS, answer_format=PLACE_FORMAT), seed=seed)

    assert all(map(is_right, calls(told))) if calls(told) else json.loads(text(told))["at"]


@pytest.mark.parametrize("tool_format", ["hermes", "mistral"])
def test_text_is_free_up_to_the_mark_of_a_call(tool_format):
    job, _ = prepare(conversation(TOOLS), dataclasses.replace(CARD, call_format=FORMATS[tool_format]))

    assert job.sampling.grammar.startswith("root ::= calls\n")
    assert "<tool_call>" in job.sampling.grammar_triggers or "[TOOL_CALLS]" in job.sampling.grammar_triggers


@pytest.mark.parametrize(("card", "opening"), [(THINKER, "<think>"), (OPENED, "")])
def test_thoughts_are_watched_where_they_may_quote_the_mark_of_a_call(card, opening):
    free, _ = prepare(conversation(TOOLS), card)
    without_thoughts, _ = prepare(conversation(TOOLS, thinks=False), card)

    assert free.sampling.grammar_triggers == ("<tool_call>",)
    watched = free.sampling.thoughts
    assert watched is not None
    assert (watched.tokens, watched.opening, watched.closing) == (2**31 - 1, opening, "</think>")
    assert without_thoughts.sampling.thoughts is None or without_thoughts.sampling.thoughts.tokens == 0


def test_a_budget_of_thoughts_goes_before_watching_them():
    job, _ = prepare(conversation(TOOLS, thought_tokens=7), THINKER)

    assert job.sampling.thoughts is not None
    assert job.sampling.thoughts.tokens == 7


def test_thoughts_that_no_lazy_grammar_follows_are_not_watched():
    plain, _ = prepare(conversation(), THINKER)
    forced, _ = prepare(conversation(TOOLS, tool_choice=FORCED), THINKER)
    control = dataclasses.replace(THINKER, call_format=dataclasses.replace(FORMATS["hermes"], markers=("<|call|>",)))
    called_in_thoughts, _ = prepare(conversation(TOOLS), control)

    assert [job.sampling.thoughts for job in (plain, forced, called_in_thoughts)] == [None, None, None]


CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


# The first of them builds the native recogniser.
BUILDS = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def recogniser() -> Iterator[Oracle]:
    with oracle() as asked:
        yield asked


@BUILDS
@pytest.mark.parametrize(
    ("card", "text", "verdict"),
    [
        (CARD, CALL, "y"),
        (CARD, f"{CALL}\n{CALL}", "y"),
        (CARD, f"Hm. {CALL}", "n"),
        (CARD, f"<think></think>{CALL}", "n"),
        (THINKER, CALL, "y"),
        (THINKER, f"<think>\nHm < </thin> <<\n</think>\n\n{CALL}", "y"),
        (THINKER, f"<think></think>{CALL}", "y"),
        (THINKER, f"<think>a <</think>{CALL}", "y"),
        (THINKER, f"Hm.</think>{CALL}", "n"),
        (THINKER, "<think>Hm.</think>Yes", "n"),
        (THINKER, f"<think>Hm.</think>Hm</think>{CALL}", "n"),
        (THINKER, "<think>" + "Hm. " * 500, "b"),
        (OPENED, f"Hm.</think>\n\n{CALL}", "y"),
        (OPENED, f"</think>{CALL}", "y"),
        (OPENED, CALL, "b"),
        (OPENED, f"Hm.</think>\n\n\n\n\n{CALL}", "n"),
    ],
)
def test_thoughts_may_come_before_what_is_forced(recogniser, card, text, verdict):
    job, _ = prepare(conversation(TOOLS, tool_choice=FORCED), card)

    assert recogniser.verdicts(job.sampling.grammar, [text]) == verdict


@BUILDS
@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"name": "now", "parameters": {}}', "y"),
        ('{"name": "sun', "n"),
        ("", "y"),
        (" \n It rains {always}.", "y"),
        (' {"x"', "n"),
    ],
)
def test_who_has_no_call_marks_may_still_just_talk(recogniser, text, verdict):
    job, _ = prepare(conversation(TOOLS), dataclasses.replace(CARD, call_format=FORMATS["llama3"]))

    assert recogniser.verdicts(job.sampling.grammar, [text]) == verdict
    assert job.sampling.grammar_triggers == ()


@pytest.mark.parametrize(("card", "kind"), [(THINKER, AnswerText), (OPENED, Reasoning)])
def test_an_answer_begins_in_thoughts_where_the_prompt_does(card, kind):
    _, parser = prepare(conversation(), card)

    assert isinstance(next(iter(parser.parts([Chunk(0, "Hm.", 1)]))), kind)


def test_an_answer_that_is_begun_goes_on_as_text():
    asked = conversation()
    (prompt,) = asked.job.prompts
    begun = dataclasses.replace(prompt, continue_final=True, add_generation_prompt=False)

    _, parser = prepare(msgspec.structs.replace(asked, job=dataclasses.replace(asked.job, prompts=(begun,))), OPENED)

    assert isinstance(parser, TextParser)


@pytest.mark.parametrize("seed", range(4))
def test_who_has_to_call_gives_no_json_instead(engine, seed):
    assert calls(parts(engine, conversation(TOOLS, tool_choice=FORCED, answer_format=PLACE_FORMAT), seed=seed))


def test_who_does_not_think_begins_with_the_answer(engine):
    asked = conversation(answer_format=PLACE_FORMAT, thinks=False)
    job, _ = prepare(asked, OPENED)

    assert job.prompts[0].template_arguments == {"enable_thinking": False}
    assert json.loads(text(parts(engine, asked, OPENED)))


def test_a_model_of_few_words_reads_as_plain_text():
    for asked, card in ((conversation(), CARD), (conversation(TOOLS, tool_choice=CallPolicy(CallMode.NONE)), CARD),
                        (conversation(thinks=False), THINKER),
                        (conversation(), dataclasses.replace(THINKER, splits_reasoning=False))):  # fmt: skip
        job, parser = prepare(asked, card)
        assert isinstance(parser, TextParser)
        assert job.prompts[0].tools == ()
        assert job.sampling == Sampling()


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (conversation(tool_choice=FORCED), "tool_choice"),
        (conversation(TOOLS, tool_choice=CallPolicy(CallMode.REQUIRED, "sun")), "tool_choice"),
        (conversation(TOOLS, grammar='root ::= "x"'), "grammar"),
        (conversation(answer_format=PLACE_FORMAT, grammar='root ::= "x"'), "grammar"),
        (conversation(answer_format=JsonFormat({"type": "thing"}, "text.format.schema")), "text.format.schema"),
        (conversation((RAIN, tool("bad", None, {"type": "thing"}))), "tools[1].function.parameters"),
        (conversation((tool("bad", None, {"type": "thing"}),), places=ToolPlaces("", "tools[{}].input_schema")),
         "tools[0].input_schema"),
        (conversation((RAIN, tool('"', None, None)), places=ToolPlaces("tools[{}].name")), "tools[1].name"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(asked, param):
    with pytest.raises(Refused) as refused:
        prepare(asked, CARD)

    assert refused.value.param == param


def test_many_large_schemas_are_refused_together():
    large = {"type": "object", "properties": {f"property-{i}": {"type": "string"} for i in range(300)}}
    tools = tuple(tool(f"tool{i}", None, large) for i in range(5))

    with pytest.raises(Refused, match="tools: the schemas together are too large"):
        prepare(conversation(tools), CARD)


def test_a_model_without_a_template_calls_no_tools():
    with pytest.raises(NotOffered):
        prepare(conversation(TOOLS), dataclasses.replace(CARD, capabilities=frozenset(("completion",))))


@pytest.mark.parametrize(("echo", "text"), [(True, "It was dark"), (False, "dark")])
def test_the_beginning_of_a_continued_message_comes_back_where_it_is_asked_for(echo: bool, text: str):
    begun = ({"role": "user", "content": "Tell."}, {"role": "assistant", "content": "It was "})
    prompt = Messages(begun, add_generation_prompt=False, continue_final=True)

    _, parser = prepare(Conversation(Job((prompt,)), echo=echo), CARD)

    assert "".join(part.text for part in parser.parts([Chunk(0, "dark", 1)]) if isinstance(part, AnswerText)) == text


def going_on(thoughts: str, card: ModelCard = THINKER, tools: tuple[dict[str, Any], ...] = (), **asked: Any) -> Any:
    said = ({"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "", "reasoning_content": thoughts})
    prompt = Messages(said, tools, add_generation_prompt=False, continue_final=True, continue_thoughts=True)
    return prepare(Conversation(Job((prompt,), max_tokens=2000), **asked), card)


@pytest.mark.parametrize("card", [THINKER, OPENED])
@pytest.mark.parametrize(("echo", "thoughts"), [(True, "Let me look"), (False, "look")])
def test_thoughts_go_on_and_end(card: ModelCard, echo: bool, thoughts: str):
    _, parser = going_on("Let me ", card, echo=echo)

    told = list(parser.parts([Chunk(0, piece, 1) for piece in ("look", "</thi", "nk>Yes")]))

    assert "".join(part.text for part in told if isinstance(part, Reasoning)) == thoughts
    assert "".join(part.text for part in told if isinstance(part, AnswerText)) == "Yes"


def test_thoughts_that_are_not_split_come_back_with_their_tag():
    _, parser = going_on("Let me ", dataclasses.replace(THINKER, splits_reasoning=False), echo=True)

    assert [part.text for part in parser.parts([Chunk(0, "look", 1)])] == ["<think>Let me ", "look"]


@pytest.mark.parametrize("card", [THINKER, OPENED])
def test_what_follows_thoughts_that_go_on_keeps_its_form(card: ModelCard):
    forced = going_on("Let me ", card, TOOLS, tool_choice=FORCED)[0].sampling.grammar

    assert (
        forced == begins(card, "<think>Let me " if card is THINKER else "Let me ", tools=TOOLS, tool_choice=FORCED)[0]
    )


@pytest.mark.parametrize(
    ("card", "thoughts", "asked", "words"),
    [
        (CARD, "Let me", {}, "the model does not think"),
        (OPENED, "Let me", {"thinks": False}, "the model does not think"),
        (THINKER, "So.</think>", {}, "have ended"),
        (OPENED, '<tool_call>\n{"name": "now", "arguments": {', {"tools": TOOLS}, "a call has begun"),
    ],
)
def test_thoughts_that_cannot_go_on_are_refused(card: ModelCard, thoughts: str, asked: dict[str, Any], words: str):
    with pytest.raises(Refused, match=words) as refused:
        going_on(thoughts, card, **asked)

    assert refused.value.param == "messages"


LONG_LIST = {"enum": [f"value number {number}" for number in range(900)]}
SHORT_LIST = {"enum": ["yes", "no"]}
FIELD = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"answer_format": JsonFormat(LONG_LIST, FIELD)}, FIELD),
        ({"tools": (tool("pick", None, {"type": "object", "properties": {"one": LONG_LIST}}),)}, "tools[0]"),
    ],
)
def test_a_schema_is_bound_by_the_limit_of_the_model_and_named_as_the_client_knows_it(asked: Any, param: str):
    small, large = (dataclasses.replace(CARD, grammar_bytes=size) for size in (4_000, 100_000))

    prepare(conversation(**asked), large)
    with pytest.raises(Refused) as refused:
        prepare(conversation(**asked), small)

    assert (refused.value.param or "").startswith(param)
    assert "4000 bytes" in str(refused.value)
    assert "grammar" not in str(refused.value)


def test_schemas_that_are_too_large_together_are_named_as_the_client_knows_them():
    tools = tuple(tool(f"pick{number}", None, {"properties": {"one": SHORT_LIST}}) for number in range(40))
    small = dataclasses.replace(CARD, grammar_bytes=4_000)

    with pytest.raises(Refused, match="too large") as refused:
        prepare(conversation(tools), small)

    assert refused.value.param == "tools"
    assert "grammar" not in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "param"),
    [({"answer_format": JsonFormat(SHORT_LIST, FIELD)}, FIELD), ({"tools": TOOLS, "tool_choice": FORCED}, "tools")],
)
def test_a_grammar_knows_the_field_that_it_comes_from(asked: Any, param: str):
    job, _ = prepare(conversation(**asked), CARD)

    assert job.sampling.grammar_param == param


def begins(card: ModelCard, earlier: str, **asked: Any) -> tuple[str, Any]:
    """The grammar and the budget of an answer that goes on from a text."""
    sampling = prepare(conversation(**asked), card, earlier)[0].sampling
    return sampling.grammar, sampling.thoughts


def test_a_form_behind_open_thoughts_begins_with_the_rest_of_them() -> None:
    opened = prepare(conversation(answer_format=PLACE_FORMAT), OPENED)[0].sampling.grammar

    assert begins(THINKER, "<think>Hm", answer_format=PLACE_FORMAT)[0] == opened


def test_a_form_behind_thoughts_that_are_over_has_none() -> None:
    bare = prepare(conversation(answer_format=PLACE_FORMAT), CARD)[0].sampling.grammar

    assert begins(THINKER, "<think>Hm</think>", answer_format=PLACE_FORMAT)[0] == bare
    assert begins(OPENED, "Hm</think>\nSo", answer_format=PLACE_FORMAT)[0] == bare
    assert begins(THINKER, "So", answer_format=PLACE_FORMAT)[0] == bare


def test_behind_nothing_but_white_space_all_is_as_at_the_beginning() -> None:
    for card in (CARD, THINKER, OPENED):
        whole = prepare(conversation(answer_format=PLACE_FORMAT, thought_tokens=3), card)[0].sampling

        assert begins(card, "\n", answer_format=PLACE_FORMAT, thought_tokens=3) == (whole.grammar, whole.thoughts)


def test_a_budget_counts_open_thoughts_anew_and_none_that_are_over() -> None:
    _, budget = begins(THINKER, "<think>Hm", thought_tokens=3)
    assert (budget.tokens, budget.opening) == (3, "")

    assert begins(THINKER, "<think>Hm</think>", thought_tokens=3)[1] is None


def test_nothing_goes_on_within_a_call() -> None:
    for earlier in (
        'Now: <tool_call>{"name": "now"',
        "<tool_call>",
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    ):
        with pytest.raises(Refused, match="a call has begun in what the answer goes on from") as refused:
            prepare(conversation((NOW,)), CARD, earlier)
        assert refused.value.param == "fork.at"
        prepare(conversation(), CARD, earlier)  # without tools it is text
