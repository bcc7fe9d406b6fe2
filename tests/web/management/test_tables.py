"""Tables for people."""

from __future__ import annotations

import pytest

from corosrv.web.management.commands import duration, megabytes, table


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(None, "-"), (0, "0ms"), (999.4, "999ms"), (1000, "1s"), (119_000, "119s"), (120_000, "2m"), (7_200_000, "2h"),
     (200_000_000, "2d")],
)  # fmt: skip
def test_times_are_short(milliseconds: float | None, words: str):
    assert duration(milliseconds) == words


def test_memory_is_in_megabytes():
    assert [megabytes(0), megabytes(1_500_000)] == ["-", "2MB"]


def test_a_table_is_as_wide_as_its_content():
    shown = table([("NAME", lambda row: row["name"]), ("N", lambda row: str(row["n"]))], [{"name": "longer", "n": 1}])

    assert shown == "NAME    N\nlonger  1"


def test_a_cell_is_one_line_and_not_endless():
    shown = table([("REASON", lambda row: row["reason"])], [{"reason": "a\nb " + "x" * 100}])

    assert shown.splitlines()[1] == "a b " + "x" * 55 + "…"
