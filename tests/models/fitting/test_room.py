"""How much memory is free is what the machine has, or what a cgroup leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from corosrv.models.fitting.room import CgroupFiles, Room, available_in, cgroup_folders, read_room

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\n"


@pytest.fixture
def machine(tmp_path: Path):
    """A machine's /proc and /sys/fs/cgroup, where a test writes what it wants to be read."""

    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("proc/meminfo", MEMINFO)
    return write


def test_a_machine_without_cgroups_has_what_is_available(machine, tmp_path: Path):
    assert read_room(tmp_path / "proc", tmp_path / "cg") == Room(20_480_000_000, "free on this machine")


def test_a_system_that_tells_nothing_has_no_known_room(tmp_path: Path):
    assert read_room(tmp_path / "proc", tmp_path / "cg") is None
    assert available_in("MemTotal: 1 kB\n") is None


def test_a_cgroup_of_version_2_leaves_its_limit_less_what_cannot_be_given_back(machine, tmp_path: Path):
    machine("proc/self/cgroup", "0::/app\n")
    machine("cg/app/memory.max", "4000\n")
    machine("cg/app/memory.current", "1500\n")
    machine("cg/app/memory.stat", "anon 900\nfile 600\ninactive_file 400\nactive_file 100\nunevictable 0\n")

    assert read_room(tmp_path / "proc", tmp_path / "cg") == Room(3000, "left by the cgroup's limit")


def test_a_cgroup_of_version_1_counts_what_its_children_hold(machine, tmp_path: Path):
    machine("proc/self/cgroup", "4:memory:/a/b\n3:cpuset:/\n0::/\n")
    machine("cg/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n")
    machine("cg/memory/a/b/memory.usage_in_bytes", "1000\n")
    machine("cg/memory/a/memory.limit_in_bytes", "5000\n")
    machine("cg/memory/a/memory.usage_in_bytes", "2000\n")
    machine(
        "cg/memory/a/memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file 300\ntotal_active_file 200\n"
    )

    assert read_room(tmp_path / "proc", tmp_path / "cg").free == 3500


def test_the_tightest_of_the_cgroups_above_counts(machine, tmp_path: Path):
    machine("proc/self/cgroup", "0::/slice/app\n")
    for folder, limit in (("slice", "3000"), ("slice/app", "max")):
        machine(f"cg/{folder}/memory.max", limit)
        machine(f"cg/{folder}/memory.current", "1000")

    assert read_room(tmp_path / "proc", tmp_path / "cg").free == 2000


def test_a_container_that_sees_its_own_cgroup_as_the_topmost_finds_it(machine, tmp_path: Path):
    machine("proc/self/cgroup", "0::/../../docker/0123\n")
    machine("cg/memory.max", "7000")
    machine("cg/memory.current", "0")

    assert read_room(tmp_path / "proc", tmp_path / "cg").free == 7000


def test_a_line_of_other_controllers_names_no_folder(tmp_path: Path):
    assert list(cgroup_folders("3:cpuset,cpu:/x\nnonsense\n", tmp_path)) == []


@pytest.mark.parametrize("limit", ["max", "", "nonsense"])
def test_no_limit_is_none(limit: str):
    assert CgroupFiles(limit, "5", "").free is None


def test_a_cgroup_over_its_limit_leaves_nothing():
    assert CgroupFiles("5", "9", "").free == 0


def test_a_limit_counts_where_it_is_smaller_and_zero_is_none():
    free = Room(10, "free")

    assert free.at_most(4, "a setting") == Room(4, "a setting")
    assert free.at_most(40, "a setting") == free.at_most(0, "a setting") == free
