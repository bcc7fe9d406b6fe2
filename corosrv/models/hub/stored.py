"""Lists the models that are in the cache, and removes some."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from corosrv.base.errors import HubError
from corosrv.contracts.settings.hub import HubName
from corosrv.models.hub import library
from corosrv.models.hub.cache import RepoCache
from corosrv.models.hub.choice import RepoFile, choose


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
