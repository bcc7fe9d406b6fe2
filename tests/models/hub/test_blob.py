"""One file on its way into the cache, where the disk has no room for it."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from corosrv.base.errors import HubError
from corosrv.contracts.settings import model_list
from corosrv.models.hub import client
from corosrv.models.hub.client import BlobSource, HashedFile, fetch

CONTENT = bytes(range(256)) * 20
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def begin(folder: Path, transfer, size: int | None = len(CONTENT), etag: str = DIGEST) -> None:
    blob = folder / "blobs" / etag
    fetch(BlobSource("m.gguf", etag, size), blob, folder / "locks" / "m", transfer, lambda n_bytes: None)


def test_a_full_disk_leaves_the_part_that_it_had_room_for(tmp_path: Path) -> None:
    def fill(file: HashedFile, offset: int) -> None:
        file.write(CONTENT[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as full:
        begin(tmp_path, fill)

    assert (tmp_path / "blobs" / f"{DIGEST}.incomplete").read_bytes() == CONTENT[:1000]
    words = client.describe(full.value, model_list.parse_hub_name("o/r"), "https://hub")
    assert words.startswith("the disk is full: ")
    assert "the next try goes on with it" in words


def test_a_transfer_gets_the_offset_at_which_to_go_on(tmp_path: Path) -> None:
    offsets = []

    def send(file: HashedFile, offset: int) -> None:
        offsets.append(offset)
        file.write(CONTENT[offset : offset + 3000])

    with pytest.raises(HubError, match=r"the download of m\.gguf ended after 3000 of 5120 bytes"):
        begin(tmp_path, send)
    begin(tmp_path, send)

    assert offsets == [0, 3000]
    assert (tmp_path / "blobs" / DIGEST).read_bytes() == CONTENT


def test_a_server_that_sends_all_instead_of_the_rest_is_hashed_anew(tmp_path: Path) -> None:
    def send(file: HashedFile, offset: int) -> None:
        file.seek(0)
        file.truncate()
        file.write(CONTENT)

    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / f"{DIGEST}.incomplete").write_bytes(CONTENT[:999])

    begin(tmp_path, send)

    assert (tmp_path / "blobs" / DIGEST).read_bytes() == CONTENT


def test_a_file_that_git_keeps_itself_is_checked_by_its_size(tmp_path: Path) -> None:
    etag = "a" * 40

    def send(file: HashedFile, offset: int) -> None:
        file.write(CONTENT)

    begin(tmp_path, send, etag=etag)
    with pytest.raises(HubError, match="ended after"):
        begin(tmp_path, lambda file, offset: None, etag="b" * 40)

    assert (tmp_path / "blobs" / etag).read_bytes() == CONTENT
