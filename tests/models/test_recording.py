"""The file that an engine records into: whose it may be, and what becomes of an earlier one."""

import logging
import os
import stat
from pathlib import Path

import msgspec
import pytest

from corosrv.base.errors import ModelFailed
from corosrv.models import recording
from corosrv.models.recording import RecordingHead, fault_of_path, read_head, record_into

HEAD = RecordingHead(4711, "1.0", "f" * 64, "a processor", "m", ("digest",), {"model": "m.gguf"})


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "engine.rec")


def test_a_recording_is_its_users_alone_and_has_its_head(path):
    record_into(path, HEAD).close()

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert read_head(path) == HEAD


def test_a_recording_that_was_closed_makes_room_for_the_next(path, tmp_path):
    record_into(path, HEAD).close()

    record_into(path, msgspec.structs.replace(HEAD, pid=2)).close()

    assert read_head(path).pid == 2
    assert [file.name for file in tmp_path.iterdir()] == ["engine.rec"]


def test_the_recording_of_a_crash_is_kept_under_another_name_which_is_logged(path, tmp_path, caplog):
    os.close(record_into(path, HEAD).fd)  # as the kernel does, when a process ends

    with caplog.at_level(logging.WARNING):
        record_into(path, HEAD).close()

    kept = tmp_path / "engine.rec.crashed-4711"
    assert read_head(str(kept)) == HEAD
    assert str(kept) in caplog.text


def test_a_few_recordings_of_crashes_are_kept_and_no_more(path, tmp_path):
    for pid in range(1, 9):
        os.close(record_into(path, msgspec.structs.replace(HEAD, pid=pid)).fd)
        os.utime(path, (pid, pid))

    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "engine.rec", *(f"engine.rec.crashed-{pid}" for pid in (4, 5, 6, 7))
    ]  # fmt: skip


def test_two_engines_do_not_record_into_one_file(path):
    first = record_into(path, HEAD)

    with pytest.raises(ModelFailed, match="another engine records into"):
        record_into(path, HEAD)
    first.close()
    record_into(path, HEAD).close()


def _link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


def _file(path: Path) -> None:
    path.write_text("my thesis")


@pytest.mark.parametrize(
    ("make", "words"),
    [(_link, "is a symbolic link"), (Path.mkdir, "is no file"), (os.mkfifo, "is no file"), (_file, "of another kind")],
)
def test_what_is_no_recording_is_left_alone(path, make, words):
    make(Path(path))

    with pytest.raises(ModelFailed, match=words):
        record_into(path, HEAD)

    assert not (Path(path).is_file() and Path(path).read_text() != "my thesis")


@pytest.mark.parametrize(("name", "words"), [("none/x.rec", "is no folder"), ("x" * 300, "cannot be looked at")])
def test_a_path_that_cannot_be_made_is_refused(tmp_path, name, words):
    assert words in fault_of_path(str(tmp_path / name))
    with pytest.raises(ModelFailed, match=words):
        record_into(str(tmp_path / name), HEAD)


def test_a_file_of_another_user_is_refused(path, monkeypatch):
    record_into(path, HEAD).close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert "belongs to another user" in fault_of_path(path)


def test_a_head_that_is_cut_anywhere_is_refused_in_words(path):
    record_into(path, HEAD).close()
    whole = Path(path).read_bytes()

    for size in range(len(whole)):
        Path(path).write_bytes(whole[:size])
        with pytest.raises(ModelFailed, match="is empty" if size == 0 else "ends within its head"):
            read_head(path)


@pytest.mark.parametrize(
    ("at", "byte", "words"),
    [
        (0, b"x", "is no recording"),
        (16, b"\x02", "has version 2"),
        (30, b"\xff", "is damaged"),
        (-4, b"\xff", "is damaged"),
    ],
)
def test_a_head_of_something_else_is_refused(path, at, byte, words):
    record_into(path, HEAD).close()
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(byte)

    with pytest.raises(ModelFailed, match=words):
        read_head(path)


def test_a_file_that_is_not_there_is_refused(path):
    with pytest.raises(ModelFailed, match="cannot be read: No such file"):
        read_head(path)


def test_trouble_is_logged_once(path, caplog):
    opened = record_into(path, HEAD)

    for trouble in ("No space left on device", "No space left on device", ""):
        opened.tell(trouble)
    opened.close()

    assert caplog.text.count("No space left on device") == 1


def test_digests_tell_files_apart_that_differ_at_an_end_or_in_size(tmp_path):
    content = bytearray(os.urandom(300_000))
    digests = set()
    for change in (None, 0, len(content) - 1):
        if change is not None:
            content[change] ^= 1
        (tmp_path / "m").write_bytes(content)
        digests.add(recording.digest_of(str(tmp_path / "m")))
    (tmp_path / "m").write_bytes(content + b"x")
    digests.add(recording.digest_of(str(tmp_path / "m")))

    assert len(digests) == 4
