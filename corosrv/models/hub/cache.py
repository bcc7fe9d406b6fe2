"""The cache of downloaded files, laid out as huggingface_hub has it, so that other programs use them as well.

models--OWNER--REPO/blobs/ETAG                 a file's content
models--OWNER--REPO/snapshots/COMMIT/PATH      a link to it
models--OWNER--REPO/refs/REVISION              the commit that a revision was at the last look

Lists the models that are in the cache, and removes some.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from corosrv.base.errors import HubError
from corosrv.contracts.settings.hub import HubName, is_plain_path
from corosrv.models.hub import library
from corosrv.models.hub.choice import RepoFile, choose

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{7,127}")


class RepoCache:
    """The folder of one repository in the cache. Nothing is made before something is put into it."""

    def __init__(self, cache: Path, repo: str) -> None:
        name = "--".join(("models", *repo.split("/")))
        self.folder = cache / name
        self._locks = cache / ".locks" / name

    def commit_of(self, revision: str) -> str | None:
        """Returns the commit that a revision was at the last look; None where it was never looked at."""
        if _COMMIT.fullmatch(revision):
            return revision if self._snapshot(revision).is_dir() else None
        try:
            commit = (self.folder / "refs" / revision).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if _COMMIT.fullmatch(commit) else None

    def files(self, commit: str) -> list[RepoFile]:
        """Returns the files of a commit that are there, in the order of their paths."""
        snapshot = self._snapshot(commit)
        paths = sorted(path for path in snapshot.rglob("*") if path.is_file())
        return [RepoFile(path.relative_to(snapshot).as_posix(), path.stat().st_size) for path in paths]

    def file(self, commit: str, path: str) -> Path:
        """Returns where a file of a commit is, or will be. Raises HubError for a path that leads elsewhere."""
        if not is_plain_path(path):
            raise HubError(f"the hub lists a file that no cache may hold: {path!r}")
        return self._snapshot(commit) / path

    def blob(self, etag: str) -> Path:
        """Returns where the content of this ETag is, or will be. Raises HubError for one that is no file name."""
        if not _ETAG.fullmatch(etag):
            raise HubError(f"the hub answers with an ETag that cannot be a file's name: {etag[:100]!r}")
        return self.folder / "blobs" / etag

    def lock(self, etag: str) -> Path:
        return self._locks / f"{etag}.lock"

    def link(self, commit: str, path: str, blob: Path) -> Path:
        """Makes a file of a commit a link to its content, whatever was there."""
        file = self.file(commit, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        other = file.with_name(f".{file.name}.{os.getpid()}")
        other.unlink(missing_ok=True)
        try:
            other.symlink_to(os.path.relpath(blob, file.parent))
            other.replace(file)
        finally:
            other.unlink(missing_ok=True)
        return file

    def note(self, revision: str, commit: str) -> None:
        """Remembers the commit of a revision, for looks without a hub."""
        if revision == commit:
            return
        ref = self.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        if self.commit_of(revision) != commit:
            ref.write_text(commit, "ascii")

    def _snapshot(self, commit: str) -> Path:
        if not _COMMIT.fullmatch(commit):
            raise HubError(f"the hub answers with a commit that is none: {commit[:100]!r}")
        return self.folder / "snapshots" / commit


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A repository with GGUF files in the cache; `last_used` in seconds since 1970, as the file system notes it."""

    repo: str
    size: int
    files: tuple[str, ...]
    last_used: float

    def __str__(self) -> str:
        used = datetime.fromtimestamp(self.last_used).strftime("%Y-%m-%d %H:%M")
        return f"hf:{self.repo}  {self.size / 1e6:.0f} MB  used {used}  {', '.join(self.files)}"


def stored_models() -> list[StoredModel]:
    """Returns the models in the cache, in the order of their names. Raises HubMissing."""
    models = []
    for repo in _repos():
        files = {file.file_path.relative_to(revision.snapshot_path).as_posix(): file.size_on_disk
                 for revision in repo.revisions for file in revision.files}  # fmt: skip
        names = tuple(sorted(path for path in files if path.endswith(".gguf")))
        if names:
            models.append(StoredModel(repo.repo_id, repo.size_on_disk, names, repo.last_accessed))
    return sorted(models, key=lambda model: model.repo)


def remove(name: HubName) -> int:
    """Removes a model from the cache, all of its repository where no quantisation or file is named.

    Returns the bytes that were freed. Raises HubError where it is not there.
    """
    folder = RepoCache(Path(library.load().constants.HF_HUB_CACHE), name.repo).folder
    if not folder.is_dir():
        raise HubError(f"{name.repo} is not in the cache: corosrv models lists what is")
    if not name.tag and not name.file:
        freed = sum(blob.stat().st_size for blob in (folder / "blobs").glob("*"))
        shutil.rmtree(folder)
        return freed
    sizes: list[int] = []
    for snapshot in sorted((folder / "snapshots").iterdir()):
        files = [RepoFile(path.relative_to(snapshot).as_posix()) for path in snapshot.rglob("*") if path.is_file()]
        try:
            parts = choose(files, name, with_projector=False).parts
        except HubError:
            continue
        sizes += [_remove_file(folder, snapshot / part.path) for part in parts]
    if not sizes:
        raise HubError(f"{name.id} is not in the cache: corosrv models lists what is")
    return sum(sizes)


def _remove_file(folder: Path, link: Path) -> int:
    """Removes a file of a commit, and its content unless another file has it too; returns the bytes that were freed."""
    blob = link.parent / os.readlink(link) if link.is_symlink() else link
    blob = Path(os.path.abspath(blob))
    link.unlink()
    is_used = any(other.is_symlink() and other.resolve() == blob.resolve() for other in _links(folder))
    if blob == link or is_used or not blob.is_relative_to(folder):
        return 0
    size = blob.stat().st_size
    blob.unlink()
    return size


def _links(folder: Path) -> Sequence[Path]:
    return [path for path in (folder / "snapshots").rglob("*") if not path.is_dir()]


def _repos() -> list[Any]:
    hub = library.load()
    try:
        return [repo for repo in hub.scan_cache_dir(hub.constants.HF_HUB_CACHE).repos if repo.repo_type == "model"]
    except hub.errors.CacheNotFound:
        return []
