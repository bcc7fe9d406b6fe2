"""The run directory: private, and short enough for sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from corosrv.base.errors import SettingsError
from corosrv.base.run_dir import MAX_PATH, default_path, open_run_dir
from corosrv.web.management.client import new_socket_path, sockets
from tests.web.management.serving import short_folder


def test_the_users_own_folder_is_the_default():
    assert default_path({"XDG_RUNTIME_DIR": "/run/user/7"}) == "/run/user/7/corosrv"
    assert default_path({}).endswith(f"/corosrv-{os.geteuid()}")


def test_a_folder_is_made_for_its_owner_alone(tmp_path: Path):
    folder = open_run_dir(str(tmp_path / "a" / "b"))

    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert open_run_dir(folder) == folder


def test_a_folder_that_others_can_use_is_refused(tmp_path: Path):
    (tmp_path / "open").mkdir(mode=0o755)

    with pytest.raises(SettingsError, match=r"can be used by others \(mode 0755\): chmod 700"):
        open_run_dir(str(tmp_path / "open"))


def test_a_folder_that_somebody_else_owns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "foreign").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    with pytest.raises(SettingsError, match="belongs to the user 0, and this process to 12345"):
        open_run_dir(str(tmp_path / "foreign"))
    with pytest.raises(SettingsError, match="belongs to the user 0"):
        sockets(str(tmp_path / "foreign"))


def test_a_link_and_a_file_are_refused(tmp_path: Path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="is no folder"):
        open_run_dir(str(tmp_path / "link"))
    with pytest.raises(SettingsError, match="File exists"):
        open_run_dir(str(tmp_path / "file"))


def test_a_folder_that_cannot_be_made_is_named():
    with pytest.raises(SettingsError, match="/proc/corosrv cannot be used"):
        open_run_dir("/proc/corosrv")


def test_the_paths_of_sockets_are_checked_before_they_are_bound():
    assert len(new_socket_path("/" + "x" * (MAX_PATH - 15))) == MAX_PATH
    with pytest.raises(SettingsError, match="too long"):
        new_socket_path("/" + "x" * (MAX_PATH - 14))
    with pytest.raises(SettingsError, match="too long"):
        new_socket_path("/" + "ä" * 50)


def test_only_sockets_are_servers():
    with short_folder() as folder:
        (Path(folder) / "file.sock").touch()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path := new_socket_path(folder))

        assert sockets(folder) == [path]
    assert sockets(folder) == []
