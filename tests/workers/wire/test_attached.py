"""Large values in sealed memory files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from corosrv.base.errors import ProtocolError
from corosrv.workers.wire import descriptors
from tests.support.descriptors import n_descriptors


@pytest.fixture
def fd() -> Iterator[int]:
    fd = descriptors.make([b"some ", memoryview(b"content")])
    yield fd
    os.close(fd)


def test_a_value_is_mapped_as_it_was_made(fd: int) -> None:
    assert bytes(descriptors.map_value(fd, 12)) == b"some content"


@pytest.mark.own_process
def test_a_mapping_outlives_its_descriptor_and_keeps_none_open() -> None:
    before = n_descriptors()
    fd = descriptors.make([b"x" * descriptors.MIN_ATTACHED])
    value = descriptors.map_value(fd, descriptors.MIN_ATTACHED)
    os.close(fd)

    assert value[-1:] == b"x"
    value.release()
    del value
    assert n_descriptors() <= before


def test_a_value_of_nothing_is_one() -> None:
    fd = descriptors.make([])

    assert bytes(descriptors.map_value(fd, 0)) == b""
    os.close(fd)


def test_nobody_can_change_a_value(fd: int) -> None:
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 1)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 12, mmap.MAP_SHARED, mmap.PROT_WRITE)
    with pytest.raises(TypeError):
        descriptors.map_value(fd, 12)[0] = 1


@pytest.mark.parametrize("size", [0, 11, 13, 1 << 40])
def test_another_size_than_announced_is_refused(fd: int, size: int) -> None:
    with pytest.raises(ProtocolError, match="has 12 bytes"):
        descriptors.map_value(fd, size)


def test_a_file_that_is_not_sealed_is_refused() -> None:
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 5)

    with pytest.raises(ProtocolError, match="not sealed"):
        descriptors.map_value(fd, 5)
    os.close(fd)


def test_what_is_no_memory_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    file = os.open(tmp_path / "file", os.O_RDONLY)
    pipe = os.pipe()

    for fd in (file, *pipe):
        with pytest.raises(ProtocolError, match="no memory file"):
            descriptors.map_value(fd, 7)
        os.close(fd)
