"""No row without a test."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.dialects.predictions.rows import ROWS

ROOT = Path(__file__).parent.parent.parent.parent


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_row_is_there():
    assert list(ROWS) == list(range(1, 37))


@pytest.mark.parametrize("number", ROWS)
def test_each_row_has_tests_that_are_there(number: int):
    assert ROWS[number].tests
    for file, function in ROWS[number].tests:
        assert function in functions(file), f"{file} has no {function}"
