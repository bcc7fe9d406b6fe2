"""What is printed, cut into pieces."""

from __future__ import annotations

import itertools
import re
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corosrv.workers.worker import printed as module
from corosrv.workers.worker.printed import MAX_LINE, MAX_PIECE, NOTICE, Lines
from tests.support.processor_time import least_seconds


def test_whole_lines_go_out_at_once() -> None:
    lines = Lines()

    assert lines.feed(b"one\ntwo\nthr") == ["one\ntwo\n"]
    assert lines.feed(b"ee") == []
    assert lines.feed(b"\n") == ["three\n"]
    assert lines.take_unfinished() == []


def test_the_rest_is_kept_until_it_is_asked_for() -> None:
    lines = Lines()
    lines.feed(b"no end")

    assert lines.take_unfinished() == ["no end"]
    assert lines.take_unfinished() == []


@given(st.lists(st.text(alphabet="aä€😀\n\r", max_size=20)))
def test_nothing_is_lost_or_changed(texts: list[str]) -> None:
    lines = Lines()
    out = [piece for text in texts for piece in lines.feed(text.encode())]

    assert "".join(out + lines.take_unfinished()) == "".join(texts)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)))
def test_invalid_bytes_are_replaced_wherever_they_are_cut(data: bytes, cuts: list[int]) -> None:
    lines = Lines()
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    out = [piece for start, end in itertools.pairwise(edges) for piece in lines.feed(data[start:end])]

    assert "".join(out + lines.take_unfinished()) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("character", ["x", "ä", "€", "😀"])
def test_a_long_line_goes_out_in_parts_and_no_character_is_split(character: str) -> None:
    lines = Lines()
    text = "-" + character * (MAX_PIECE // 2)

    out = [piece for at in range(0, len(text), 1000) for piece in lines.feed(text[at : at + 1000].encode())]

    assert "".join(out + lines.take_unfinished()) == text
    assert all(len(piece.encode()) <= MAX_PIECE + 4000 for piece in out)


@pytest.mark.parametrize("step", [1 << 16, 1 << 20, 1 << 23])
def test_a_line_over_the_limit_is_cut_and_says_so(step: int) -> None:
    lines = Lines()
    data = b"x" * (MAX_LINE + 5) + b"\nnext\n"

    out = [piece for at in range(0, len(data), step) for piece in lines.feed(data[at : at + step])]

    assert "".join(out) == "x" * MAX_LINE + NOTICE.decode() + "next\n"
    assert all(len(piece.encode()) <= MAX_PIECE for piece in out)


def test_a_line_of_just_the_limit_is_not_cut() -> None:
    lines = Lines()

    assert "".join(lines.feed(b"x" * (MAX_LINE - 1) + b"\n")) == "x" * (MAX_LINE - 1) + "\n"


def test_many_lines_are_no_long_line() -> None:
    lines = Lines()
    data = (b"x" * 999 + b"\n") * 10_000

    assert "".join(lines.feed(data)) == data.decode()


def test_a_progress_bar_is_no_long_line() -> None:
    lines = Lines()
    for _ in range(3 * MAX_LINE // 100_000):
        lines.feed(b"x" * 100_000 + b"\r")
        lines.take_unfinished()

    assert lines.feed(b"done\n") == ["done\n"]


@given(
    st.lists(st.tuples(st.integers(0, 14), st.sampled_from(["\n", "\r", "\r\n"])), max_size=5),
    st.lists(st.integers(1, 12), min_size=1),
)
@example([(9, "\r"), (3, "\n")], [4])
@example([(9, "\r"), (9, "\n")], [3])
def test_long_lines_are_cut_wherever_their_parts_begin(shapes: list[tuple[int, str]], steps: list[int]) -> None:
    text = "".join("a" * length + end for length, end in shapes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_LINE", 8)
        patch.setattr(module, "MAX_PIECE", 4)
        lines = Lines()
        out, data = [], text.encode()
        for step in itertools.cycle(steps):
            out += lines.feed(data[:step])
            data = data[step:]
            if not data:
                break
        out += lines.take_unfinished()

    whole_lines = re.findall(r"[^\n\r]*[\n\r]|[^\n\r]+", text)
    assert "".join(out) == "".join(line if len(line) <= 8 else line[:8] + NOTICE.decode() for line in whole_lines)


@pytest.mark.parametrize("step", [1 << 12, 1 << 20, 1 << 28])
def test_what_is_left_out_of_a_line_costs_next_to_nothing(step: int) -> None:
    data = b"x" * (1 << 28)

    def feed() -> None:
        lines = Lines()
        out = [piece for at in range(0, len(data), step) for piece in lines.feed(data[at : at + step])]
        assert sum(map(len, out)) == MAX_LINE + len(NOTICE)

    assert least_seconds(feed, 5) < 5  # it was 12 while each part was looked through twice


@pytest.mark.parametrize("text", [b"\n" * (8 << 20), b"\r" * (8 << 20)], ids=["newlines", "carriage returns"])
def test_many_empty_lines_cost_little_memory(text: bytes) -> None:
    tracemalloc.start()
    try:
        out = Lines().feed(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sum(map(len, out)) == len(text)
    assert peak < 4 * len(text)
