"""The cache of downloaded files, laid out as huggingface_hub has it, so that other programs use them as well.

models--OWNER--REPO/blobs/ETAG                 a file's content
models--OWNER--REPO/snapshots/COMMIT/PATH      a link to it
models--OWNER--REPO/refs/REVISION              the commit that a revision was at the last look

`choose` picks the files of a repository: a model's parts, and the projector of a model that takes images. Its rules are
llama-server's (its common/download.cpp): a quantisation is found in file names, whatever its case; without one Q4_K_M
is taken, else Q8_0, else the first model. `stored_models` lists what is in the cache, and `remove` removes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from corosrv.base.errors import HubError, HubMissing
from corosrv.contracts.settings.model_list import HubName, is_plain_path

USUAL = ("Q4_K_M", "Q8_0")
# Files that stand beside models and are none: projectors, calibration, heads for drafting.
_BESIDE = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_SPLIT = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})", re.IGNORECASE)
_TAG = re.compile(r"[-.]([A-Z0-9_]+)$", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class RepoFile:
    """Describes one file of a repository; `size` in bytes, `sha256` empty where the hub does not tell."""

    path: str
    size: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """Holds the parts of a model, the first one first, and its projector if it has one."""

    parts: tuple[RepoFile, ...]
    projector: RepoFile | None = None

    @property
    def all(self) -> tuple[RepoFile, ...]:
        return self.parts if self.projector is None else (*self.parts, self.projector)


@dataclass(frozen=True, slots=True)
class _Split:
    """Holds what a file's name says: which part of how many it is, and the quantisation."""

    prefix: str
    index: int
    count: int

    @property
    def bits(self) -> int:
        tag = _TAG.search(self.prefix)
        number = _NUMBER.search(tag[1]) if tag else None
        return int(number[0][:6]) if number else 0


def choose(files: Sequence[RepoFile], name: HubName, with_projector: bool = True) -> ChosenFiles:
    """Returns the files that a name stands for. Raises HubError where there are none, or parts are missing."""
    usable = [file for file in files if file.path.endswith(".gguf") and is_plain_path(file.path)]
    first = _file_named(usable, name) if name.file else _first(usable, name.tag)
    if first is None:
        raise HubError(_words(usable, name))
    return ChosenFiles(_parts(usable, first), _projector(usable, first) if with_projector else None)


def _file_named(files: Sequence[RepoFile], name: HubName) -> RepoFile | None:
    file = next((file for file in files if file.path == name.file), None)
    if file is None or _split(file.path).index == 1:
        return file
    split = _split(file.path)  # a later part stands for its model
    return next((file for file in files if _is_part(file, split) and _split(file.path).index == 1), None)


def _first(files: Sequence[RepoFile], tag: str) -> RepoFile | None:
    models = [file for file in files if _is_model(file.path) and _split(file.path).index == 1]
    for wanted in (tag,) if tag else USUAL:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for file in models:
            if pattern.search(file.path):
                return file
    return None if tag or not models else models[0]


def _is_model(path: str) -> bool:
    name = path.rpartition("/")[2]
    return not any(word in name for word in _BESIDE)


def _split(path: str) -> _Split:
    prefix = path.removesuffix(".gguf")
    match = _SPLIT.fullmatch(prefix)
    return _Split(match[1], int(match[2]), int(match[3])) if match else _Split(prefix, 1, 1)


def _is_part(file: RepoFile, split: _Split) -> bool:
    own = _split(file.path)
    return (own.prefix, own.count) == (split.prefix, split.count)


def _parts(files: Sequence[RepoFile], first: RepoFile) -> tuple[RepoFile, ...]:
    split = _split(first.path)
    if split.count <= 1:
        return (first,)
    by_index = {_split(file.path).index: file for file in files if _is_part(file, split)}
    if sorted(by_index) != list(range(1, split.count + 1)):
        raise HubError(f"{first.path} has {split.count} parts, of which {len(by_index)} are there")
    return tuple(by_index[index] for index in sorted(by_index))


def _projector(files: Sequence[RepoFile], model: RepoFile) -> RepoFile | None:
    """Returns the projector in the model's folder, or in one above, of the closest quantisation."""
    folders, bits = model.path.split("/")[:-1], _split(model.path).bits
    best: tuple[int, int] | None = None
    chosen = None
    for file in files:
        own = file.path.split("/")[:-1]
        if "mmproj" not in file.path or folders[: len(own)] != own:
            continue
        rank = (-len(own), abs(_split(file.path).bits - bits))
        if best is None or rank < best:
            best, chosen = rank, file
    return chosen


def _words(files: Sequence[RepoFile], name: HubName) -> str:
    """Explains why a name stands for no file, and lists those that are there."""
    what = (
        f"has no file {name.file}" if name.file else f"has no model of {name.tag}" if name.tag else "has no GGUF model"
    )
    names = [file.path for file in files][:_MOST_SHOWN]
    more = ", ..." if len(files) > len(names) else ""
    return f"{name.repo} {what}" + (f"; its GGUF files: {', '.join(names)}{more}" if names else "")


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
    folder = RepoCache(Path(load_library().constants.HF_HUB_CACHE), name.repo).folder
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
    hub = load_library()
    try:
        return [repo for repo in hub.scan_cache_dir(hub.constants.HF_HUB_CACHE).repos if repo.repo_type == "model"]
    except hub.errors.CacheNotFound:
        return []


def check_installed() -> None:
    """Raises HubMissing where the library is not installed; imports nothing of it."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise HubMissing


def load_library() -> Any:
    """Imports the library. Raises HubMissing."""
    check_installed()
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.utils

    return huggingface_hub
