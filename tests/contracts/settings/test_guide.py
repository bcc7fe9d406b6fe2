"""The guide's tables of settings agree with the settings."""

import re
from dataclasses import fields
from pathlib import Path

from corosrv.contracts.settings import PARTS

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "settings.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in row) for row in re.findall(r"^\| (`.*?) \| (.*) \| (.*?) \|$", GUIDE, re.MULTILINE)
]
DEFAULTS = {field.name: field.default for part in PARTS for field in fields(part)}


def names(cell: str) -> list[str]:
    """Returns the settings that a cell names; `_TYPE_V` continues a name as its variable does."""
    return [name.lower().removeprefix("corosrv_") for name in re.findall(r"`(\w+)`", cell)]


def is_setting(name: str) -> bool:
    return name in DEFAULTS or (name[0] == "_" and name[1:] in DEFAULTS)


def test_every_variable_of_a_table_is_a_setting():
    assert len(ROWS) > 50
    assert [name for cell, _, _ in ROWS for name in names(cell) if not is_setting(name)] == []


def test_a_default_that_is_a_number_is_the_setting_s():
    told = [(names(cell)[0], float(default)) for cell, _, default in ROWS if re.fullmatch(r"[\d.]+", default)]

    assert len(told) > 20
    assert [(name, default) for name, default in told if DEFAULTS[name] != default] == []
