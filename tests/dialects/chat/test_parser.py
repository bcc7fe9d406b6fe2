"""Texts become thoughts, text and calls; how they are cut on their way changes nothing."""

import json
import random
from array import array
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest

from corosrv.contracts.jobs import Chunk, Finish, TokenInfo
from corosrv.dialects.chat.choice import Syntax
from corosrv.dialects.chat.parts import AnswerText, CallArguments, CallBegin, End, Part, Reasoning
from corosrv.dialects.chat.prepare import EchoParser, Parser, SyntaxParser, TextParser
from corosrv.formats.callformats.description import CallFormat
from tests.support.call_formats import FORMATS

HERMES = Syntax(tool_format=FORMATS["hermes"])
MISTRAL = Syntax(tool_format=FORMATS["mistral"])
LLAMA = Syntax(tool_format=FORMATS["llama3"])
TAGS = ("<think>", "</think>")
THINKING = Syntax(TAGS, tool_format=FORMATS["hermes"])
OPENED = Syntax(TAGS, begins_in_thoughts=True, tool_format=FORMATS["hermes"])
# All marks are control tokens.
CHANNELS = Syntax(
    ("<|think>", "<think|>"),
    tool_format=CallFormat(start="<|call>", inner=("\n",), joint="", end="<call|>", markers=("<|call>",)),
)

# What is told of an answer: its thoughts, its text, its calls, and why it ended.
Told = tuple[str, str, list[tuple[str, str]], str]


def chunks(pieces: Iterable[str], finish: Finish = Finish.STOP, index: int = 0) -> list[Chunk]:
    return [*(Chunk(index, piece, 1) for piece in pieces), Chunk(index, "", 1, finish)]


def told(parts: Iterable[Part]) -> Told:
    thoughts, text, reason = "", "", ""
    calls: list[tuple[str, str]] = []
    for part in parts:
        assert not reason, "nothing follows an end"
        match part:
            case Reasoning():
                assert part.text
                thoughts += part.text
            case AnswerText():
                assert part.text or part.tokens
                text += part.text
            case CallBegin():
                assert part.call == len(calls)
                calls.append((part.name, ""))
            case CallArguments():
                assert part.call == len(calls) - 1
                assert part.piece
                calls[-1] = (calls[-1][0], calls[-1][1] + part.piece)
            case End():
                reason = part.reason
    return thoughts, text, calls, reason


def parse(syntax: Syntax, *pieces: str, finish: Finish = Finish.STOP) -> Told:
    return told(SyntaxParser(syntax).parts(chunks(pieces, finish)))


RAIN = '<tool_call>\n{"name": "rain", "arguments": {"city": "Köln", "at": [1, {"x": "}\\"]"}]}}\n</tool_call>'
RAIN_CALL = ("rain", '{"city": "Köln", "at": [1, {"x": "}\\"]"}]}')
SUN = '<tool_call>{"name":"sun","arguments":{}}</tool_call>'
SUN_CALL = ("sun", "{}")
WIDE_HEAD = SUN.replace("{", " " * 600 + "{", 1)

CASES: dict[str, tuple[Syntax, str, Told]] = {
    "text": (HERMES, " Hello, world.\n", ("", " Hello, world.\n", [], "stop")),
    "nothing": (THINKING, "", ("", "", [], "stop")),
    "space": (THINKING, " \n", ("", " \n", [], "stop")),
    "a call": (HERMES, RAIN, ("", "", [RAIN_CALL], "tool_calls")),
    "calls": (HERMES, f"{RAIN}\n{SUN}\n", ("", "", [RAIN_CALL, SUN_CALL], "tool_calls")),
    "text and a call": (HERMES, f"Let me see.\n\n{SUN}", ("", "Let me see.", [SUN_CALL], "tool_calls")),
    "text around a call": (HERMES, f"Now: {SUN}\nDone. ", ("", "Now:Done.", [SUN_CALL], "tool_calls")),
    "no call": (HERMES, "a <tool_calls> b </tool_call>", ("", "a <tool_calls> b </tool_call>", [], "stop")),
    "a false start": (HERMES, "<tool_call>\nnone", ("", "<tool_call>\nnone", [], "stop")),
    "another name first": (HERMES, '<tool_call>{"nam": 1}', ("", '<tool_call>{"nam": 1}', [], "stop")),
    "a false start and a call": (HERMES, f"x <tool_call> {SUN}", ("", "x <tool_call>", [SUN_CALL], "tool_calls")),
    "a marker begun at the end": (HERMES, "a <tool_", ("", "a <tool_", [], "stop")),
    "angles": (HERMES, "1 < 2 <<tool <", ("", "1 < 2 <<tool <", [], "stop")),
    "a call without an end": (HERMES, SUN[:-12], ("", "", [SUN_CALL], "tool_calls")),
    "a call with another end": (HERMES, SUN[:-12] + "x" * 600, ("", "}" + "x" * 600, [SUN_CALL], "tool_calls")),
    "a call in its middle": (HERMES, RAIN[:60], ("", "", [("rain", RAIN[42:60])], "tool_calls")),
    "a call in its head": (HERMES, "so <tool_call>\n{", ("", "so <tool_call>\n{", [], "stop")),
    "a head without end": (HERMES, SUN[:11] + " " * 600, ("", SUN[:11] + " " * 600, [], "stop")),
    "a head with a wide gap": (HERMES, WIDE_HEAD, ("", WIDE_HEAD, [], "stop")),
    "a tail with a wide gap": (
        HERMES,
        SUN.replace("</", " " * 600 + "</"),
        ("", "}" + " " * 600 + "</tool_call>", [SUN_CALL], "tool_calls"),
    ),
    "a list that goes on": (MISTRAL, '[{"name": "sun", "arguments": {}}, x', ("", "x", [SUN_CALL], "tool_calls")),
    "arguments that are none": (HERMES, SUN.replace("{}", "12"), ("", "", [("sun", "12")], "tool_calls")),
    "mistral": (MISTRAL, '[{"name": "sun", "arguments": {}}]', ("", "", [SUN_CALL], "tool_calls")),
    "mistral with its mark": (
        MISTRAL,
        'So [TOOL_CALLS] [{"name": "sun", "arguments": {}, "id": "abcdefgh"}, {"name": "rain", "arguments": {"a": 1}}]',
        ("", "So", [SUN_CALL, ("rain", '{"a": 1}')], "tool_calls"),
    ),
    "a list": (MISTRAL, '[{"names": []}] [TOOL_CALL]', ("", '[{"names": []}] [TOOL_CALL]', [], "stop")),
    "llama": (LLAMA, ' {"name": "sun", "parameters": {}}\n', ("", "", [SUN_CALL], "tool_calls")),
    "llama's object": (LLAMA, '{"names": 1}', ("", '{"names": 1}', [], "stop")),
    "llama's object in text": (
        LLAMA,
        'It is {"name": "sun", "parameters": {}}',
        ("", 'It is {"name": "sun", "parameters": {}}', [], "stop"),
    ),
    "thoughts": (THINKING, "\n<think>\nHm. \n</think>\n\nYes.\n", ("Hm.", "Yes.\n", [], "stop")),
    "no thoughts": (THINKING, "\n<thin> Yes.", ("", "\n<thin> Yes.", [], "stop")),
    "late thoughts": (THINKING, "Yes. <think>", ("", "Yes. <think>", [], "stop")),
    "empty thoughts": (THINKING, "<think>\n\n</think>\n\nYes.", ("", "Yes.", [], "stop")),
    "thoughts of calls": (THINKING, f"<think>{SUN}</think>{SUN}", (SUN, "", [SUN_CALL], "tool_calls")),
    "thoughts and no more": (THINKING, "<think>Hm </thin", ("Hm </thin", "", [], "stop")),
    "thoughts that the prompt opens": (OPENED, "\nHm.\n</think>\n\nYes.", ("Hm.", "Yes.", [], "stop")),
    "thoughts and a call": (OPENED, f"Hm.</think>\n{SUN}", ("Hm.", "", [SUN_CALL], "tool_calls")),
    "a call in open thoughts": (OPENED, f"Hm.\n {SUN}\nYes.", ("Hm.", "Yes.", [SUN_CALL], "tool_calls")),
    "a call instead of open thoughts": (OPENED, SUN, ("", "", [SUN_CALL], "tool_calls")),
    "open thoughts of calls": (OPENED, f"So {SUN}</think>", (f"So {SUN}", "", [], "stop")),
    "open thoughts of a false start": (
        OPENED, f"<tool_call>{{no\n{SUN}", ("<tool_call>{no", "", [SUN_CALL], "tool_calls")
    ),
    "open thoughts and a begun call": (OPENED, "Hm.\n<tool_call>", ("Hm.\n<tool_call>", "", [], "stop")),
    "open thoughts of a begun call": (OPENED, "Hm.\n<tool_call></think>Yes", ("Hm.\n<tool_call>", "Yes", [], "stop")),
    "a wide head in open thoughts": (OPENED, WIDE_HEAD, (WIDE_HEAD, "", [], "stop")),
    "channels": (CHANNELS, "<|think>Hm.<think|>Yes.", ("Hm.", "Yes.", [], "stop")),
    "channels that come again": (
        CHANNELS, "<|think>Hm. <think|>Yes. <|think> So.\n<think|> No.<think|>", ("Hm.So.", "Yes.No.", [], "stop")
    ),
    "channels that never think": (CHANNELS, "Yes.<think|> <|thin", ("", "Yes.<|thin", [], "stop")),
    "calls in channels": (
        CHANNELS, "<|think>Hm <|call>sun\n{}<call|>Yes.", ("Hm", "Yes.", [SUN_CALL], "tool_calls")
    ),
    "open thoughts": (OPENED, "Hm. ", ("Hm. ", "", [], "stop")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_text_becomes_parts(case):
    syntax, text, expected = case

    assert parse(syntax, text) == expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_how_a_text_is_cut_changes_nothing(case):
    syntax, text, expected = case
    cuts = random.Random(text)

    assert parse(syntax, *text) == expected
    for at in range(min(len(text), 200)):
        assert parse(syntax, text[:at], text[at:]) == expected
    for _ in range(30):
        places = sorted(cuts.sample(range(len(text) + 1), k=min(5, len(text))))
        pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        assert parse(syntax, *pieces) == expected


ALPHABET = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<", "[TOOL_CALLS]", "[", "]", '{"name": "a", "arguments": ',
    '{"name":', '"parameters":', "{", "}", ",", '"', "\\", " ", "\n", "a", "é", '{"x": "}"}',
]  # fmt: skip


@pytest.mark.parametrize("syntax", [HERMES, MISTRAL, LLAMA, THINKING, OPENED])
def test_how_any_text_is_cut_changes_nothing(syntax):
    chance = random.Random(4)
    for _ in range(400):
        words = chance.choices(ALPHABET, k=chance.randrange(1, 16))
        whole = parse(syntax, "".join(words))

        assert parse(syntax, *words) == whole
        assert parse(syntax, *"".join(words)) == whole


def test_text_is_sent_as_soon_as_it_can_be_nothing_else():
    parser = SyntaxParser(HERMES)

    sent = [told(parser.parts([Chunk(0, piece, 1)]))[1] for piece in ("It", " is", " <", "b", "> ", "<tool", "s", " x")]

    assert sent == ["It", " is", "", " <b", ">", "", " <tools", " x"]


def test_no_more_is_held_back_than_a_call_could_need():
    sent = SyntaxParser(HERMES).parts([Chunk(0, "<tool_call>" + " " * 600, 1)])

    assert told(sent)[1] == "<tool_call>"


def test_arguments_are_sent_as_they_come():
    parser = SyntaxParser(HERMES)
    list(parser.parts([Chunk(0, '<tool_call>{"name": "rain", "arguments": ', 1)]))

    pieces = [list(parser.parts([Chunk(0, piece, 1)])) for piece in ('{"ci', 'ty": ', '"K"', "}", "}")]

    assert [[part.piece for part in some if isinstance(part, CallArguments)] for some in pieces] == [
        ['{"ci'], ['ty": '], ['"K"'], ["}"], [],
    ]  # fmt: skip


def test_a_call_is_told_of_before_its_arguments():
    parser = SyntaxParser(HERMES)

    (begin,) = parser.parts([Chunk(0, '<tool_call>{"name": "rain", "arguments":', 1)])

    assert isinstance(begin, CallBegin)
    assert (begin.name, begin.call, begin.id[:5]) == ("rain", 0, "call_")


def test_calls_have_ids_of_their_own():
    begins = [part for part in SyntaxParser(HERMES).parts(chunks([SUN + SUN])) if isinstance(part, CallBegin)]

    assert len({begin.id for begin in begins}) == 2


def test_who_is_cut_off_in_a_call_says_so():
    assert parse(HERMES, RAIN[:60], finish=Finish.LENGTH)[3] == "length"


FORCED = {name: Syntax(tool_format=form, only_calls=True) for name, form in FORMATS.items()}
FORCED_TEXTS = {
    "hermes": RAIN + "\n" + RAIN,
    "mistral": '[TOOL_CALLS][{"name": "sun", "arguments": {"a": 1}}, {"name": "sun", "arguments": {"a": 1}}]',
    "llama3": '{"name": "sun", "parameters": {"a": 1}}',
}


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.STOP])
@pytest.mark.parametrize("form", FORCED)
def test_a_forced_call_never_shows_its_markup_wherever_it_is_cut(form, finish):
    text = FORCED_TEXTS[form]

    texts = {parse(FORCED[form], *text[:end], finish=finish)[1] for end in range(len(text) + 1)}

    assert texts == {""}


def test_a_call_that_the_limit_cuts_in_its_head_is_no_text():
    assert parse(HERMES, "so <tool_call>\n{", finish=Finish.LENGTH) == ("", "so", [], "length")
    assert parse(HERMES, f"{SUN}\n<tool_", finish=Finish.LENGTH) == ("", "", [SUN_CALL], "length")
    assert parse(HERMES, "1 <", finish=Finish.LENGTH) == ("", "1 <", [], "length")


def test_an_answer_with_an_echo_begins_with_the_message_that_it_continues():
    parser = EchoParser(SyntaxParser(HERMES), "It was ")
    both = [*chunks(["dark"], index=0)[:1], *chunks(["late", SUN], index=1), *chunks([" then"], index=0)]

    parts = list(parser.parts(both))

    texts = ["".join(part.text for part in parts if isinstance(part, AnswerText) and part.choice == n) for n in (0, 1)]
    assert texts == ["It was dark then", "It was late"]
    assert parts[0] == AnswerText(0, "It was ")


def test_choices_do_not_mix():
    parts = SyntaxParser(HERMES).parts(
        [Chunk(0, "<tool_", 1), Chunk(1, "text", 1), Chunk(0, SUN[6:], 1), *chunks([], index=1), *chunks([], index=0)]
    )

    told_by_choice: dict[int, list[Part]] = {0: [], 1: []}
    for part in parts:
        told_by_choice[part.choice].append(part)
    assert told(told_by_choice[0]) == ("", "", [SUN_CALL], "tool_calls")
    assert told(told_by_choice[1]) == ("", "text", [], "stop")


def test_tokens_of_thoughts_are_counted():
    parser = SyntaxParser(THINKING)

    list(parser.parts(chunks(["<think>", "\n", "Hm", "</think>", "\n\n", "Yes"])))

    assert parser.reasoning_tokens == 4


class Pieces:
    """A vocabulary whose tokens are those of one answer, by their places in it."""

    def __init__(self, *pieces: str | bytes) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def read(self, ends: Sequence[int], *, lags: bool = False) -> list[Chunk]:
        """Returns the chunks of a client that reads whenever so many tokens are there, the last of which ends it.

        `lags`: the text of each token is certain when the next one is there.
        """
        chunks, n_told = [], 0
        for begin, end in pairwise((0, *ends)):
            is_last = end == len(self.pieces)
            told = (piece for piece in self.pieces[: end - (lags and not is_last)] if piece != b"</s>")
            certain = b"".join(told).decode(errors="ignore")
            ids = array("i", range(begin, end)).tobytes()
            finish = Finish.STOP if is_last else None
            chunks.append(Chunk(0, certain[n_told:], end - begin, finish, ids=ids))
            n_told = len(certain)
        return chunks


@pytest.mark.parametrize(
    ("syntax", "pieces", "n_thoughts"),
    [
        (THINKING, ["<think>", "\n", "Hm", "</think>", "\n\n", "Yes", "</s>"], 4),
        (THINKING, ["<th", "ink>", "Hm", "</", "think", ">", " Yes", "</s>"], 5),
        (THINKING, [" <think>Hm", ".</think>Yes", "."], 2),
        (THINKING, ["<think>", "Caf", b"\xc3", b"\xa9", "</think>", "Yes"], 5),
        (THINKING, ["Yes", "<think>", "no", "</think>"], 0),
        (THINKING, ["<think>", "Hm", ".", ".", "</s>"], 5),
        (OPENED, ["Hm", "</think>", "Yes", "</s>"], 2),
        (OPENED, ["Hm", ".", "</s>"], 3),
        (OPENED, ["</think>", "Yes"], 1),
        (HERMES, ["<think>", "Hm", "</think>", SUN], 0),
    ],
)
@pytest.mark.parametrize("lags", [False, True])
def test_tokens_of_thoughts_are_as_many_however_late_a_client_reads(syntax, pieces, n_thoughts, lags: bool):
    vocabulary = Pieces(*pieces)
    places = range(1, len(pieces))

    for n_reads in range(len(pieces)):
        for ends in combinations(places, n_reads):
            parser = SyntaxParser(syntax, find_vocabulary=lambda: vocabulary)
            read = vocabulary.read((*ends, len(pieces)), lags=lags)

            told = [parser.reasoning_tokens for part in parser.parts(read) if isinstance(part, End)]

            assert told == [n_thoughts], [chunk.text for chunk in read]


def test_chunks_that_do_not_tell_their_tokens_count_whole():
    parser = SyntaxParser(THINKING)

    list(parser.parts([Chunk(0, "<think>Hm", 3), Chunk(0, "</think>Yes", 5), Chunk(0, "!", 7)]))

    assert parser.reasoning_tokens == 8


# Tokens.


def token(piece: str | bytes, number: int = 7) -> TokenInfo:
    return TokenInfo(number, piece.encode() if isinstance(piece, str) else piece, -0.5)


def told_tokens(parser: Parser, some: list[Chunk]) -> list[tuple[str, list[bytes]]]:
    parts = [part for part in parser.parts(some) if isinstance(part, AnswerText)]
    return [(part.text, [info.piece for info in part.tokens]) for part in parts]


def with_tokens(*pieces: str) -> list[Chunk]:
    last = Chunk(0, "", 1, Finish.STOP, tokens=(token(""),))
    return [*(Chunk(0, piece, 1, tokens=(token(piece),)) for piece in pieces), last]


@pytest.mark.parametrize("parser", [TextParser(), SyntaxParser(HERMES), SyntaxParser(THINKING)])
def test_tokens_go_with_their_text(parser):
    assert told_tokens(parser, with_tokens("It", " is", "é")) == [
        ("It", [b"It"]), (" is", [b" is"]), ("é", ["é".encode()]), ("", [b""]),
    ]  # fmt: skip


def test_tokens_wait_as_their_text_does():
    assert told_tokens(SyntaxParser(HERMES), with_tokens("a", " <", "tool", "s")) == [
        ("a", [b"a"]), (" <tools", [b" <", b"tool", b"s"]), ("", [b""]),
    ]  # fmt: skip


def test_tokens_of_thoughts_and_calls_are_not_the_text_s():
    thought = with_tokens("<think>", "Hm", "</think>", "\n", "Yes", "<tool_call>", *SUN[11:])

    assert told_tokens(SyntaxParser(THINKING), thought) == [("Yes", [b"Yes"])]


def test_the_end_of_a_call_that_is_cut_is_no_text():
    assert told_tokens(SyntaxParser(HERMES), with_tokens(*RAIN[:60])) == []


def json_cases() -> list[Any]:
    return [{}, [], {"a": [1, "x]}", {"b": '"\\'}]}, 'a"b', 1, -1.5, True, None, [[["é\n"]]]]


@pytest.mark.parametrize("value", json_cases())
@pytest.mark.parametrize("ascii", [True, False])
def test_any_value_ends_where_it_ends(value, ascii):
    written = json.dumps(value, ensure_ascii=ascii)

    assert parse(HERMES, *f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>x')[1:3] == (
        "x", [("f", written)],
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_an_answer_that_goes_on_from_a_text_repeats_none_of_it(case):
    syntax, text, (thoughts, plain, calls, _) = case

    for at in range(1, len(text)):
        if calls:
            return  # what has begun a call in an earlier answer is not gone on from
        parser = SyntaxParser(syntax, text[:at])
        later_thoughts, later_plain, _, _ = told(parser.parts(chunks((text[at:],), Finish.STOP)))

        assert thoughts.endswith(later_thoughts)
        assert plain.endswith(later_plain)
        assert len(later_thoughts + later_plain) <= len(text) - at


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ("<think>Hm, ", "so.</think>Yes.", ("so.", "Yes.", [], "stop")),
        ("<think>Hm.</thi", "nk>Yes.", ("", "Yes.", [], "stop")),
        ("<think>Hm.</thi", "n", ("n", "", [], "stop")),
        ("<think>Hm.</think>", "\n\nYes.", ("", "Yes.", [], "stop")),
        ("Hello ", "you.", ("", "you.", [], "stop")),
        ("Hello <tool", "box.", ("", "box.", [], "stop")),
        ("Let me see. <tool", f"{SUN[5:]}", ("", "", [SUN_CALL], "tool_calls")),
    ],
)
def test_what_an_earlier_text_has_opened_goes_on(earlier, later, expected):
    assert told(SyntaxParser(THINKING, earlier).parts(chunks((later,), Finish.STOP))) == expected
