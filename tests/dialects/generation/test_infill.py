"""Prompts for a hole: the order of the marks, and texts that stay texts."""

import pytest

from corosrv.base.errors import PromptTooLong
from corosrv.contracts.jobs import InfillTokens
from corosrv.dialects.generation import prompts
from corosrv.dialects.generation.prompts import Hole
from tests.support.vocabularies import (
    BOS,
    FILE,
    INFILL,
    MIDDLE,
    PREFIX,
    REPOSITORY,
    REPOSITORY_INFILL,
    SUFFIX,
    ByteVocabulary,
)  # fmt: skip

PARAMS = ("before", "behind", "begun", "others")


def tokens(hole: Hole, marks: InfillTokens = INFILL, adds_bos: bool = False) -> list[int]:
    return list(prompts.prompt(hole, marks, ByteVocabulary(marks, adds_bos), PARAMS).ids)


def test_prefix_suffix_and_the_beginning_of_the_middle_stand_in_this_order():
    assert tokens(Hole("ab", "c", "d")) == [PREFIX, *b"ab", SUFFIX, *b"c", MIDDLE, *b"d"]


def test_a_model_that_wants_a_beginning_token_gets_it_first():
    assert tokens(Hole("a", "b"), adds_bos=True) == [BOS, PREFIX, *b"a", SUFFIX, *b"b", MIDDLE]


def test_a_marker_in_a_text_stays_text():
    assert tokens(Hole("<mid>", "")) == [PREFIX, *b"<mid>", SUFFIX, MIDDLE]


def test_other_files_have_their_names_where_the_model_knows_repositories():
    others = (("a.c", "int a;"),)

    assert tokens(Hole("x", "y", other_files=others), REPOSITORY_INFILL) == [
        REPOSITORY, *b"myproject\n", FILE, *b"a.c\nint a;", FILE, *b"filename\n",
        PREFIX, *b"x", SUFFIX, *b"y", MIDDLE,
    ]  # fmt: skip


def test_other_files_are_snippets_where_it_does_not():
    assert bytes(tokens(Hole("x", "y", other_files=(("a.c", "int a;"),)))[:-5]) == b"\n\n--- snippet ---\n\nint a;"


@pytest.mark.parametrize(
    ("hole", "param"),
    [
        (Hole("x" * 2000, ""), "before"),
        (Hole("", "x" * 2000), "behind"),
        (Hole("", "", "x" * 2000), "begun"),
        (Hole("", "", other_files=(("a", "x" * 2000),)), "others"),
    ],
)
def test_a_text_that_is_too_long_is_refused_by_its_name(hole, param):
    with pytest.raises(PromptTooLong) as refused:
        tokens(hole)

    assert refused.value.param == param
