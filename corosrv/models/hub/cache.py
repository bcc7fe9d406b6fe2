"""The cache of downloaded files, laid out as huggingface_hub has it, so that other programs use them as well.

models--OWNER--REPO/blobs/ETAG                 a file's content
models--OWNER--REPO/snapshots/COMMIT/PATH      a link to it
models--OWNER--REPO/refs/REVISION              the commit that a revision was at the last look
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from corosrv.base.errors import HubError
from corosrv.contracts.settings.hub import is_plain_path
from corosrv.models.hub.choice import RepoFile

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
