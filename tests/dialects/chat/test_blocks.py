"""Parts to blocks: each opened once, grown, closed once, in order."""

import pytest

from corosrv.dialects.chat.answer import BlockDelta, BlockEnd, BlockKind, Blocks, BlockStart
from corosrv.dialects.chat.parts import Part
from tests.support.parsers import call, end, text, thought


def steps(*parts: Part) -> list[tuple[str, int, str]]:
    """What happens, to which block, and what it gets."""
    blocks = Blocks()
    return [
        (type(step).__name__, step.block.number, step.piece if isinstance(step, BlockDelta) else "")
        for part in parts
        for step in blocks.add(part)
    ]


def test_pieces_of_one_text_are_one_block():
    assert steps(text("a"), text("b"), end()) == [
        ("BlockStart", 0, ""),
        ("BlockDelta", 0, "a"),
        ("BlockDelta", 0, "b"),
        ("BlockEnd", 0, ""),
    ]


def test_another_kind_is_another_block():
    blocks = Blocks()

    for part in (thought("hm"), text("Yes"), *call(0, "look", "{}"), *call(1, "look", "{", "}"), text("!"), end()):
        list(blocks.add(part))

    assert [(block.number, block.kind, block.text) for block in blocks.row] == [
        (0, BlockKind.REASONING, "hm"),
        (1, BlockKind.TEXT, "Yes"),
        (2, BlockKind.CALL, "{}"),
        (3, BlockKind.CALL, "{}"),
        (4, BlockKind.TEXT, "!"),
    ]
    assert [(block.id, block.name) for block in blocks.row[2:4]] == [("call_0", "look"), ("call_1", "look")]


def test_a_block_is_closed_before_the_next_is_opened():
    happened = [kind for kind, _, _ in steps(text("a"), *call(0, "look"), *call(1, "look"), end())]

    assert happened == ["BlockStart", "BlockDelta", "BlockEnd", "BlockStart", "BlockEnd", "BlockStart", "BlockEnd"]


def test_what_says_nothing_opens_nothing():
    assert steps(text(""), thought("")) == []


def test_an_answer_without_parts_is_one_empty_text():
    assert steps(end()) == [("BlockStart", 0, ""), ("BlockEnd", 0, "")]


@pytest.mark.parametrize("parts", [[end("length")], [text("a"), end("length")]])
def test_the_end_is_known_when_the_last_block_closes(parts):
    blocks, seen = Blocks(), []

    for part in parts:
        for step in blocks.add(part):
            if isinstance(step, BlockEnd):
                seen.append(blocks.end)
            if isinstance(step, BlockStart):
                assert step.block.text == ""

    assert [end.reason for end in seen] == ["length"]
