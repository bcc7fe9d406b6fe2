"""Which answers can be forked, where branches begin in them, and how long and for whom they are kept."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from corosrv.base.errors import NotFound, NotSupported, Refused
from corosrv.contracts.jobs import Chunk, Finish, Image, Job, Messages, ModelCard, Pieces, Sampling, Text, Tokens
from corosrv.dialects.generation.forks import LIFETIME, ForkableAnswer, ForkFields, ForkTable, make_forkable
from tests.support.vocabularies import EOS, ByteVocabulary

CARD = ModelCard("tiny", created=1, meta={"n_ctx": 20})
JOB = Job((Text("Hi: "),))
VOCABULARY = ByteVocabulary()


def chunk(tokens: Sequence[int], index: int = 0, **members: Any) -> Chunk:
    return Chunk(index, "", len(tokens), ids=struct.pack(f"={len(tokens)}i", *tokens), **members)


def forkable(text: str = "", job: Job = JOB, id: str = "cmpl-1") -> ForkableAnswer:
    """An answer to `Hi: `, a token for each byte."""
    answer = make_forkable(job, CARD, VOCABULARY, None)[1]
    answer.id = id
    answer.add([chunk(text.encode())])
    return answer


def test_a_forkable_job_tells_its_tokens_and_is_read_once() -> None:
    job, _ = make_forkable(JOB, CARD, VOCABULARY, None)

    assert (job.prompts, job.tells_ids) == ((Tokens(tuple(b"Hi: ")),), True)


def test_branches_begin_behind_all_tokens_or_as_many_as_are_said() -> None:
    answer = forkable("one two")

    assert answer.point(ForkFields("cmpl-1"), VOCABULARY).prompt == tuple(b"Hi: one two")
    assert answer.point(ForkFields("cmpl-1", at=3), VOCABULARY).prompt == tuple(b"Hi: one")
    assert answer.point(ForkFields("cmpl-1", at=0), VOCABULARY).prompt == tuple(b"Hi: ")


def test_any_choice_can_be_forked() -> None:
    answer = forkable(job=replace(JOB, n=2))
    answer.add([chunk(b"a", 0), chunk(b"b", 1)])

    assert answer.point(ForkFields("cmpl-1", choice=1), VOCABULARY).prompt == tuple(b"Hi: b")
    with pytest.raises(Refused, match="it has 2, numbered from 0") as refused:
        answer.point(ForkFields("cmpl-1", choice=2), VOCABULARY)
    assert refused.value.param == "fork.choice"


def test_a_token_that_is_not_there_yet_is_refused_with_how_many_are() -> None:
    answer = forkable("abc")

    with pytest.raises(Refused, match="has 3 tokens so far, and 4 were to be kept") as refused:
        answer.point(ForkFields("cmpl-1", at=4), VOCABULARY)
    assert refused.value.param == "fork.at"


def test_the_token_that_ends_an_answer_is_not_kept() -> None:
    answer = forkable("ab")
    answer.add([chunk([EOS], finish=Finish.STOP)])

    assert answer.point(ForkFields("cmpl-1"), VOCABULARY).prompt == tuple(b"Hi: ab")


def test_what_a_shifted_context_has_said_cannot_be_kept() -> None:
    answer = forkable("a" * 30)

    assert len(answer.point(ForkFields("cmpl-1", at=15), VOCABULARY).prompt) == 19
    with pytest.raises(Refused, match="was full behind 16 tokens: keep fewer") as refused:
        answer.point(ForkFields("cmpl-1"), VOCABULARY)
    assert refused.value.param == "fork.at"


@pytest.mark.parametrize(("at", "begun"), [(1, b""), (2, b"\xf0"), (3, b"\xf0\x9f"), (4, b"\xf0\x9f\x8e"), (5, b"")])
def test_a_character_that_is_cut_begins_the_branches(at: int, begun: bytes) -> None:
    point = forkable("a\N{PARTY POPPER}").point(ForkFields("cmpl-1", at=at), VOCABULARY)

    assert (point.begun, point.told_bytes) == (tuple(begun), 0)
    assert point.prompt + point.begun == tuple("Hi: a\N{PARTY POPPER}".encode()[: 4 + at])
    job = point.branch(replace(JOB, max_tokens=7))
    assert (job.prompts, job.begun) == ((Tokens(point.prompt),), point.begun)


def test_a_token_that_begins_a_character_behind_others_is_told_in_part() -> None:
    class Pairs(ByteVocabulary):
        """Token 0 is ` \\xc3`."""

        def piece(self, token: int) -> bytes:
            return b" \xc3" if token == 0 else super().piece(token)

    answer = forkable()
    answer.add([chunk([97, 0])])

    point = answer.point(ForkFields("cmpl-1"), Pairs())

    assert (point.begun, point.told_bytes) == ((0,), 1)


def test_no_grammar_begins_within_a_character() -> None:
    point = forkable("\N{PARTY POPPER}").point(ForkFields("cmpl-1", at=1), VOCABULARY)

    with pytest.raises(Refused, match="a character is cut there") as refused:
        point.branch(replace(JOB, sampling=Sampling(grammar='root ::= "a"')))
    assert refused.value.param == "fork.at"


def test_a_branch_is_forked_behind_what_it_has_kept() -> None:
    point = forkable("one").point(ForkFields("cmpl-1", at=2), VOCABULARY)
    branch = make_forkable(point.branch(JOB), CARD, VOCABULARY, point)[1]
    branch.add([chunk(b"ce")])

    assert branch.point(ForkFields("cmpl-2"), VOCABULARY).prompt == tuple(b"Hi: once")


IMAGE = Image.of_pixels(1, 1, bytes(3))


@pytest.mark.parametrize(
    ("job", "error", "words"),
    [
        (Job((Text("a"), Text("b"))), Refused, "only with one prompt"),
        (Job((Text("a"),), share_prefix=False), Refused, "cache_prompt"),
        (Job((Pieces((Tokens((1,)),)),)), NotSupported, "embedding rows"),
        (Job((Messages(({"role": "user", "content": ("a", IMAGE)},)),)), NotSupported, "images"),
    ],
)
def test_what_cannot_be_forked_is_refused_before_it_runs(job: Job, error: type[Refused], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        make_forkable(job, CARD, VOCABULARY, None)
    assert refused.value.param == "forkable"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_finds_their_own_answers_alone() -> None:
    table = ForkTable()
    table.keep(forkable(), "one")

    assert table.find("cmpl-1", "one").id == "cmpl-1"
    for id, caller in (("cmpl-1", "two"), ("cmpl-2", "one"), ("cmpl-1", "")):
        with pytest.raises(NotFound, match="no forkable answer") as refused:
            table.find(id, caller)
        assert (refused.value.param, refused.value.code) == ("fork.of", "answer_not_found")


def test_an_answer_is_forgotten_some_time_after_its_last_use() -> None:
    clock = Clock()
    table = ForkTable(now=clock)
    table.keep(forkable(), "")
    clock.now += LIFETIME - 1
    table.find("cmpl-1", "")
    clock.now += LIFETIME - 1
    table.find("cmpl-1", "")

    clock.now += LIFETIME + 1

    with pytest.raises(NotFound):
        table.find("cmpl-1", "")
    table.keep(forkable(id="cmpl-2"), "")
    assert table.n_answers("") == 1


def test_the_answer_that_was_not_forked_longest_makes_room_for_others_of_its_caller() -> None:
    table = ForkTable(most_answers=2)
    table.keep(forkable(id="cmpl-0"), "other")
    table.keep(forkable(id="cmpl-1"), "")
    table.keep(forkable(id="cmpl-2"), "")
    table.find("cmpl-1", "")

    table.keep(forkable(id="cmpl-3"), "")

    with pytest.raises(NotFound):
        table.find("cmpl-2", "")
    assert table.n_answers("") == 2
    assert table.find("cmpl-0", "other")


def test_the_bytes_of_a_caller_are_bounded_and_its_newest_answer_stays() -> None:
    table = ForkTable(n_callers=2, most_bytes=200)  # 100 for each: 25 tokens
    table.keep(forkable("a" * 12, id="cmpl-1"), "")
    table.keep(forkable("a" * 12, id="cmpl-2"), "")
    assert table.n_answers("") == 1

    table.keep(forkable("a" * 50, id="cmpl-3"), "")

    assert table.n_answers("") == 1
    assert table.find("cmpl-3", "")
