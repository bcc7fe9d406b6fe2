"""Directories for nobody else's eyes."""

from __future__ import annotations

from pathlib import Path

import pytest

from corosrv.workers.worker.values.addresses import make_private


def test_a_directory_and_those_above_it_are_for_their_owner_alone(tmp_path: Path):
    deepest = tmp_path / "a" / "b" / "c"

    make_private(str(deepest))

    assert {place.stat().st_mode & 0o777 for place in (deepest, *deepest.parents[:2])} == {0o700}


def test_one_that_is_there_is_left_as_it_is(tmp_path: Path):
    tmp_path.chmod(0o755)

    make_private(str(tmp_path))

    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_file_in_the_way_is_told(tmp_path: Path):
    (tmp_path / "a").touch()

    with pytest.raises(NotADirectoryError):
        make_private(str(tmp_path / "a" / "b"))
