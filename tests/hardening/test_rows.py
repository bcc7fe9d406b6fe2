"""No row without a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.hardening.rows import ELSEWHERE, ROWS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def rows_tested() -> set[int]:
    """The rows that tests of this folder name."""
    functions = [
        node.name
        for file in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    return {int(row) for name in functions if name.startswith("test_h") for row in re.findall(r"_h(\d{3})(?=_)", name)}


def test_each_row_has_a_test() -> None:
    assert sorted(set(ROWS) - rows_tested() - set(ELSEWHERE)) == []


def test_each_test_has_a_row() -> None:
    assert sorted(rows_tested() - set(ROWS)) == []


@pytest.mark.parametrize("row", ELSEWHERE)
def test_what_is_tested_elsewhere_is_there(row: int) -> None:
    file, title = ELSEWHERE[row]

    assert row in ROWS
    assert title in (ROOT / file).read_text()
