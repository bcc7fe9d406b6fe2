import random
import tracemalloc
from itertools import pairwise

import pytest

from corosrv.fleet.upstreams.policies import (
    BLOCK_ENDS,
    FIRST_BLOCK,
    LIFETIME,
    MAX_MARKS,
    MAX_PROMPT,
    PrefixIndex,
    marks_of,
)


def words(n_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(n_bytes)


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex()


def longest(index: PrefixIndex, prompt: bytes, *upstreams: str, now: float = 0.0) -> tuple[int, list[str]]:
    return index.longest(upstreams or ("a", "b", "c"), marks_of(prompt), now)


# Marks.


@pytest.mark.parametrize("n_shared", [200, 512, 1000, 5000, 40_000, 300_000])
def test_prompts_that_begin_alike_share_all_but_an_eighth_or_a_block_of_it(n_shared: int):
    beginning = words(n_shared)

    first, second = marks_of(beginning + words(900, 1)), marks_of(beginning + words(900, 2))

    shared = max(length for length, digest in set(first) & set(second))
    assert n_shared - max(FIRST_BLOCK, n_shared / 8) <= shared <= n_shared


def test_a_prompt_that_differs_in_its_first_byte_shares_nothing():
    assert not set(marks_of(b"a" + words(5000))) & set(marks_of(b"b" + words(5000)))


def test_a_prompt_shorter_than_a_block_has_no_marks():
    assert marks_of(words(FIRST_BLOCK - 1)) == []
    assert len(marks_of(words(FIRST_BLOCK))) == 1


def test_a_long_prompt_has_few_marks_and_what_is_beyond_the_bound_none():
    assert len(marks_of(bytes(MAX_PROMPT))) == len(marks_of(bytes(3 * MAX_PROMPT))) == len(BLOCK_ENDS) < 100


def test_blocks_grow_and_are_never_more_than_an_eighth_of_what_precedes_them():
    blocks = [end - start for start, end in pairwise((0, *BLOCK_ENDS))]

    assert blocks == sorted(blocks)
    assert all(block <= max(FIRST_BLOCK, start / 8) for block, start in zip(blocks[1:], BLOCK_ENDS, strict=False))


# The index.


def test_the_upstream_that_has_seen_the_longest_beginning_is_told(index: PrefixIndex):
    prompt = words(3000)
    index.add("a", marks_of(prompt[:500]), 0)
    index.add("b", marks_of(prompt[:2000]), 0)
    index.add("c", marks_of(words(3000, 1)), 0)

    length, holders = longest(index, prompt)

    assert holders == ["b"]
    assert 1700 <= length <= 2000


def test_all_upstreams_that_have_seen_a_shared_system_prompt_of_200_characters_are_told(index: PrefixIndex):
    system = words(200)
    for number, upstream in enumerate("abc"):
        index.add(upstream, marks_of(system + words(400, number + 1)), 0)

    assert longest(index, system + words(400, 9)) == (192, ["a", "b", "c"])


def test_only_upstreams_that_were_asked_about_are_told(index: PrefixIndex):
    prompt = words(1000)
    index.add("a", marks_of(prompt), 0)
    index.add("b", marks_of(prompt[:300]), 0)

    assert longest(index, prompt, "b", "c") == (256, ["b"])


def test_nobody_is_told_of_a_prompt_that_no_upstream_has_seen(index: PrefixIndex):
    index.add("a", marks_of(words(1000)), 0)

    assert longest(index, words(1000, 1)) == (0, [])


def test_what_was_seen_too_long_ago_does_not_count(index: PrefixIndex):
    prompt = words(1000)
    index.add("a", marks_of(prompt), 100.0)

    assert longest(index, prompt, now=100.0 + LIFETIME)[1] == ["a"]
    assert longest(index, prompt, now=100.1 + LIFETIME) == (0, [])


def test_an_upstream_that_is_forgotten_has_seen_nothing_even_if_its_id_returns(index: PrefixIndex):
    prompt = words(1000)
    index.add("a", marks_of(prompt), 0)
    index.add("b", marks_of(prompt[:500]), 0)

    index.forget("a")
    assert longest(index, prompt)[1] == ["b"]
    index.add("a", marks_of(words(1000, 1)), 0)

    assert longest(index, prompt)[1] == ["b"]


def test_forgetting_an_unknown_upstream_changes_nothing(index: PrefixIndex):
    index.forget("a")

    assert len(index) == 0


def test_the_index_never_holds_more_marks_than_its_bound():
    index = PrefixIndex(max_marks=50)

    for seed in range(200):
        index.add("abc"[seed % 3], marks_of(words(64 * (1 + seed % 20), seed)), seed)
        assert len(index) <= 50

    assert len(index) == 50


def test_what_was_used_longest_ago_is_forgotten_first():
    old, used, new = (words(640, seed) for seed in range(3))
    index = PrefixIndex(max_marks=2 * len(marks_of(old)))
    for prompt in (used, old, used, new):
        index.add("a", marks_of(prompt), 0)

    assert [longest(index, prompt)[1] for prompt in (old, used, new)] == [[], ["a"], ["a"]]


def test_the_end_of_a_prompt_is_forgotten_before_its_beginning():
    index = PrefixIndex(max_marks=len(marks_of(words(640))))
    index.add("a", marks_of(words(640)), 0)

    index.add("a", marks_of(words(64, 1)), 0)

    length = longest(index, words(640))[0]
    assert length == marks_of(words(640))[-2][0]


def test_a_full_index_takes_less_than_32_megabytes():
    tracemalloc.start()
    try:
        index = PrefixIndex()
        marks = [(64, hash(number.to_bytes(8, "big"))) for number in range(MAX_MARKS + 1000)]
        before = tracemalloc.get_traced_memory()[0]
        index.add("a", marks, 0.0)
        n_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert len(index) == MAX_MARKS
    assert n_bytes < 32 << 20
