"""Temporary folders of processes: the lock, the end, and what becomes of those whose processes were killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corosrv.base.run_dir import OwnedFolder, sweep

TIMEOUT = 20
PREFIX = "corosrv-owned-"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the system's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(temporary: Path) -> Iterator[OwnedFolder]:
    folder = OwnedFolder(PREFIX)
    yield folder
    folder.close()


def test_a_process_without_files_has_no_folder(folder: OwnedFolder, temporary: Path):
    assert list(temporary.iterdir()) == []


def test_all_paths_of_a_process_are_new_and_in_one_private_folder(folder: OwnedFolder, temporary: Path):
    paths = [Path(folder.new_path()) for _ in range(3)]

    (made,) = temporary.iterdir()
    assert {path.parent for path in paths} == {made}
    assert len(set(paths)) == 3
    assert made.stat().st_mode & 0o777 == 0o700
    assert list(made.iterdir()) == []


def test_a_closed_folder_is_gone_with_its_files_and_can_be_used_again(folder: OwnedFolder, temporary: Path):
    os.mkdir(folder.new_path())

    folder.close()
    folder.close()

    assert list(temporary.iterdir()) == []
    assert Path(folder.new_path()).parent.is_dir()


def test_a_folder_that_is_closed_once_more_meanwhile_is_removed_once(
    folder: OwnedFolder, temporary: Path, monkeypatch: pytest.MonkeyPatch
):
    os.mkdir(folder.new_path())
    remove, n_removed = shutil.rmtree, 0

    def remove_slowly(path: str, ignore_errors: bool) -> None:
        nonlocal n_removed
        n_removed += 1
        if n_removed < 3:
            folder.close()
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", remove_slowly)
    folder.close()

    assert n_removed == 1
    assert not list(temporary.iterdir())


def test_a_folder_that_somebody_removed_is_made_and_locked_again(folder: OwnedFolder, temporary: Path):
    shutil.rmtree(Path(folder.new_path()).parent)

    again = Path(folder.new_path()).parent
    sweep(PREFIX)

    assert list(temporary.iterdir()) == [again]


def test_a_sweep_leaves_the_folders_of_living_processes_and_of_others(folder: OwnedFolder, temporary: Path):
    os.mkdir(folder.new_path())
    (temporary / "corosrv-other").mkdir()
    (temporary / f"{PREFIX}link").symlink_to(temporary / "corosrv-other")
    (temporary / f"{PREFIX}file").write_text("")
    before = sorted(temporary.rglob("*"))

    sweep(PREFIX)

    assert sorted(temporary.rglob("*")) == before


_PROCESS = """
import os, signal
from corosrv.base.run_dir import OwnedFolder
path = OwnedFolder("corosrv-owned-").new_path()
os.mkdir(path)
open(path + "/input", "w").close()
print("made", flush=True)
signal.pause()
"""


def test_a_sweep_removes_the_folder_of_a_killed_process(temporary: Path):
    command = [sys.executable, "-c", _PROCESS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)})
    assert process.stdout is not None
    assert process.stdout.readline() == b"made\n"
    (left,) = temporary.iterdir()

    sweep(PREFIX)
    assert left.is_dir()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT)
    sweep(PREFIX)

    assert list(temporary.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_made_later(
    folder: OwnedFolder, temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    path = folder.new_path()
    assert not Path(path).parent.exists()
    assert "cannot be made" in caplog.text

    (temporary / "missing").mkdir()

    assert Path(folder.new_path()).parent.is_dir()
