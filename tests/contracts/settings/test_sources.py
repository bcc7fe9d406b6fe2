"""Where settings come from, and which source wins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import setting


@dataclass(frozen=True)
class Part:
    size: int = setting(1, "how large", also="OTHER_SIZE")
    rate: float = setting(1.0, "how fast")
    is_on: bool = setting(False, "whether")
    name: str = setting("", "which")


def of(environ: dict[str, str] | None = None, file: Path | None = None, **overrides: Any) -> dict[str, Any]:
    return sources.read(overrides, environ or {}, file, (Part,)).values(Part)


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    return file


def test_what_nobody_said_is_not_there():
    assert of({"COROSRV_SIZE": ""}, size=None) == {}


def test_later_sources_win(tmp_path: Path):
    file = written(tmp_path, "size = 3")
    other, own = {"OTHER_SIZE": "2"}, {"COROSRV_SIZE": "4"}

    assert of(other) == {"size": 2}
    assert of(other, file) == {"size": 3}
    assert of(other | own, file) == {"size": 4}
    assert of(other | own, file, size=5) == {"size": 5}


def test_what_others_variables_say_is_not_ones_own():
    raw = sources.read({}, {"OTHER_SIZE": "2", "COROSRV_RATE": "3"}, None, (Part,))

    assert raw.own_values(Part) == {"rate": 3.0}


def test_the_file_may_be_named_by_the_environment(tmp_path: Path):
    file = written(tmp_path, 'name = "here"')

    assert of({"COROSRV_CONFIG": str(file)}) == {"name": "here"}


@pytest.mark.parametrize(
    ("variable", "text"), [("COROSRV_SIZE", "1.5"), ("OTHER_SIZE", "x"), ("COROSRV_IS_ON", "true")]
)
def test_a_text_that_is_no_value_is_refused_by_its_variable(variable: str, text: str):
    with pytest.raises(SettingsError, match=f"{variable} must be .*'{text}'"):
        of({variable: text})


@pytest.mark.parametrize("line", ["size = true", "size = 1.5", 'is_on = "1"', "rate = false", "name = 1"])
def test_a_file_has_values_of_the_right_type(tmp_path: Path, line: str):
    with pytest.raises(SettingsError, match=f"{line.split()[0]} must be of type"):
        of(file=written(tmp_path, line))


def test_a_file_may_have_whole_numbers_for_others(tmp_path: Path):
    assert of(file=written(tmp_path, "rate = 2")) == {"rate": 2.0}


@pytest.mark.parametrize("text", ["no toml", "other = 1"])
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str):
    with pytest.raises(SettingsError, match="settings file"):
        of(file=written(tmp_path, text))


def test_the_file_may_be_json(tmp_path: Path):
    file = tmp_path / "settings.json"
    file.write_text('{"size": 3, "is_on": true}')

    assert of(file=file) == {"size": 3, "is_on": True}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("size = 3", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('["size"]', "must be an object"),
        ('{"size": null}', "size must be of type int"),
        ('{"other": 1}', "unknown setting 'other'"),
    ],
)
def test_json_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str):
    file = tmp_path / "settings.json"
    file.write_text(text)

    with pytest.raises(SettingsError, match=words):
        of(file=file)


def test_each_value_has_its_source(tmp_path: Path):
    file = written(tmp_path, 'name = "here"')
    environ = {"OTHER_SIZE": "2", "COROSRV_RATE": "3"}

    sourced = sources.read({"is_on": True}, environ, file, (Part,)).sourced_values(Part)

    assert {name: source for name, (_, source) in sourced.items()} == {
        "size": "environment OTHER_SIZE",
        "rate": "environment COROSRV_RATE",
        "name": f"file {file}",
        "is_on": "command line",
    }


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="cannot be read"):
        of(file=tmp_path / "none")
