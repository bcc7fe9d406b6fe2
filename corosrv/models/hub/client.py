"""Asks a hub which files a repository has, and downloads them: a model's parts and its projector, all of one commit.

Blocks; made for a process of its own, which reports to its server by messages, one JSON object a line. A download goes
on where the last try ended, compares the checksum, and only then gives the file its name. `describe` says what an error
of the library means and what would help.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

import msgspec

from corosrv.base.errors import HubError
from corosrv.contracts.settings import HubSettings
from corosrv.contracts.settings.model_list import HubName
from corosrv.models.hub.cache import ChosenFiles, RepoCache, RepoFile, choose, load_library

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIECE = 1 << 20  # bytes hashed at once
_PAUSE = 0.5  # seconds between two looks at whether another process has finished the same file

# Gets the bytes of a file, from an offset to its end: `transfer(file, offset)`.
Transfer = Callable[["HashedFile", int], None]
Report = Callable[[int], None]  # gets the bytes of the file that are there


@dataclass(frozen=True, slots=True)
class BlobSource:
    """A file's expected ETag, which is its SHA-256 where the hub keeps it apart, and its size in bytes."""

    path: str
    etag: str
    size: int | None


class HashedFile(FileIO):
    """A file that is written from its beginning on, and hashed meanwhile."""

    def __init__(self, path: Path, report: Report) -> None:
        """Opens what is there, or makes it; the position is its end once read_rest() was called."""
        super().__init__(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+")
        self._sha256 = hashlib.sha256()
        self._report = report

    def read_rest(self) -> int:
        """Hashes what is there already; returns its bytes."""
        while piece := self.read(_PIECE):
            self._sha256.update(piece)
            self._report(self.tell())
        return self.tell()

    def write(self, content: object) -> int:
        view = memoryview(content).cast("B")  # type: ignore[arg-type]
        n_written = 0
        while n_written < len(view):
            n_written += super().write(view[n_written:])
        self._sha256.update(view)
        self._report(self.tell())
        return n_written

    def truncate(self, size: int | None = None) -> int:
        """Empties the file: a server that was asked for the rest of it sends all of it."""
        if (size if size is not None else self.tell()) != 0:
            raise HubError("a download can only be begun anew from its first byte")
        self._sha256 = hashlib.sha256()
        return super().truncate(0)

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()


def fetch(source: BlobSource, blob: Path, lock: Path, transfer: Transfer, report: Report) -> None:
    """Downloads a file to `blob`, unless it is there. Waits while another process does.

    What a try leaves behind is `blob`.incomplete, with which the next one goes on. Raises HubError for a wrong
    checksum, then nothing is left behind; and whatever `transfer` raises.
    """
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_name(blob.name + ".incomplete")
    with _locked(lock, lambda: report(_size(partial))):
        if blob.exists():
            return
        if source.size is not None and _size(partial) > source.size:
            partial.unlink()
        with HashedFile(partial, report) as file:
            transfer(file, file.read_rest())
            size, digest = file.tell(), file.digest
            os.fsync(file.fileno())
        _check(source, partial, size, digest)
        partial.replace(blob)


def _check(source: BlobSource, partial: Path, size: int, digest: str) -> None:
    """Raises HubError for content that is not what the hub promised, and removes it if more would not mend it."""
    if source.size is not None and size < source.size:
        raise HubError(
            f"the download of {source.path} ended after {size} of {source.size} bytes; the next try goes on there"
        )
    if (source.size is not None and size > source.size) or (_SHA256.fullmatch(source.etag) and digest != source.etag):
        partial.unlink()
        raise HubError(
            f"the checksum of {source.path} is wrong: its SHA-256 is {digest} and should be {source.etag}; "
            "it was removed, the next try downloads it again"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of a file, which the library's own downloads take as well. Waits for as long as others hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(fd):
            on_wait()
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that an error stands for; None for one of the connection."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_unreachable(error: BaseException) -> bool:
    """Returns whether the hub did not answer, or has troubles of its own: files that are there may be used then."""
    status = status_of(error)
    return not isinstance(error, ValueError) and (status is None or status >= 500 or status == 429)


def describe(error: BaseException, name: HubName, endpoint: str) -> str:
    """Explains an error of the library to the operator."""
    if type(error).__name__ == "GatedRepoError":
        return (
            f"{name.repo} is gated: accept its terms on {endpoint}/{name.repo}, and give a token that may read it "
            "(HF_TOKEN or --hf-token)"
        )
    if type(error).__name__ == "RevisionNotFoundError":
        return f"{name.repo} has no revision {name.revision!r}"
    status = status_of(error)
    if status in (401, 403, 404):
        return (
            f"{endpoint} has no repository {name.repo}, or one that needs a token which may read it "
            f"(HF_TOKEN or --hf-token): status {status}"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {error}; what was downloaded stays, and the next try goes on with it"
    if isinstance(error, PermissionError):
        return f"the cache of models cannot be written: {error}; choose another folder with HF_HOME"
    first_line = (str(error) or type(error).__name__).strip().splitlines()[0]
    return f"{name.repo} could not be had from {endpoint}: {first_line}; what was downloaded stays for the next try"


_TIMEOUT = 30.0  # seconds in which the hub must begin to answer


@dataclass(frozen=True, slots=True)
class RepoListing:
    """The files of a repository at one commit; `is_offline`: those that are in the cache, for the hub was not asked."""

    commit: str
    files: Sequence[RepoFile]
    is_offline: bool = False
    reason: str = ""  # why the hub was not asked


class HubClient:
    """One repository of a hub, and its place in the cache. The library's settings count: HF_ENDPOINT, HF_HOME ..."""

    def __init__(self, name: HubName, token: str = "", why_offline: str = "") -> None:
        """`token`: instead of the library's own; `why_offline`: why the hub is not asked, if so. Raises HubMissing."""
        self._library = load_library()
        self._why_offline = why_offline or ("HF_HUB_OFFLINE is set" if self._library.constants.HF_HUB_OFFLINE else "")
        self.name = name
        self._token = token or None
        self._api = self._library.HfApi(token=self._token, library_name="corosrv")
        self.endpoint: str = self._api.endpoint
        self.folder = Path(self._library.constants.HF_HUB_CACHE)
        self.cache = RepoCache(self.folder, name.repo)

    def list(self) -> RepoListing:
        """Lists the files, of the hub or, where that cannot be reached, of the cache. Raises HubError."""
        if self._why_offline:
            return self._list_cached(self._why_offline)
        try:
            info = self._api.model_info(
                self.name.repo, revision=self.name.revision, files_metadata=True, timeout=_TIMEOUT
            )
        except Exception as error:  # of the library, and of the three below it
            words = describe(error, self.name, self.endpoint)
            if not is_unreachable(error):
                raise HubError(words) from error
            return self._list_cached(words)
        return RepoListing(str(info.sha), [_repo_file(sibling) for sibling in info.siblings or ()])

    def _list_cached(self, reason: str) -> RepoListing:
        commit = self.cache.commit_of(self.name.revision)
        files = self.cache.files(commit) if commit else []
        if commit is None or not files:
            advice = ": unset it to download the model" if self._why_offline else ""
            raise HubError(f"{self.name.repo} is not in the cache {self.folder}, and {reason}{advice}")
        return RepoListing(commit, files, is_offline=True, reason=reason)

    def fetch(self, commit: str, file: RepoFile, report: Report) -> Path:
        """Downloads one file unless it is in the cache; returns where it is. Waits. Raises HubError."""
        place = self.cache.file(commit, file.path)
        if place.is_file() and file.size in (0, place.stat().st_size):
            report(place.stat().st_size)
            return place
        try:
            return self._fetch(commit, file, report)
        except HubError:
            raise
        except Exception as error:  # of the library, of the three below it, and of the disk
            raise HubError(describe(error, self.name, self.endpoint)) from error

    def _fetch(self, commit: str, file: RepoFile, report: Report) -> Path:
        url = self._library.hf_hub_url(self.name.repo, file.path, revision=commit, endpoint=self.endpoint)
        found = self._library.get_hf_file_metadata(url, token=self._token, library_name="corosrv")
        if found.etag is None:
            raise HubError(f"the hub tells no ETag of {file.path}, so that it cannot be checked")
        headers = self._headers(url, found.location)
        source = BlobSource(file.path, found.etag, found.size)
        if found.size is not None and file.sha256 and found.etag != file.sha256:
            raise HubError(f"{file.path} has two checksums on the hub: {file.sha256} and {found.etag}")

        def transfer(blob: HashedFile, offset: int) -> None:
            from huggingface_hub.file_download import http_get

            content = cast(BinaryIO, blob)
            http_get(found.location, content, resume_size=offset, headers=headers, expected_size=found.size)

        blob = self.cache.blob(found.etag)
        fetch(source, blob, self.cache.lock(found.etag), transfer, report)
        return self.cache.link(commit, file.path, blob)

    def _headers(self, url: str, location: str) -> dict[str, str]:
        """Makes the headers of a download; the token is for the hub alone, not for where it keeps its files."""
        headers: dict[str, Any] = self._library.utils.build_hf_headers(token=self._token, library_name="corosrv")
        if urlsplit(url)[:2] != urlsplit(location)[:2]:
            headers.pop("authorization", None)
        return headers


def _repo_file(sibling: Any) -> RepoFile:
    sha256 = sibling.lfs.sha256 if sibling.lfs is not None else ""
    return RepoFile(str(sibling.rfilename), int(sibling.size or 0), str(sha256))


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledModel:
    """Describes a model that is in the cache: the first of its parts, its projector if there is one, all bytes."""

    model: str
    mmproj: str = ""
    commit: str = ""
    size: int = 0
    n_files: int = 1
    offline: str = ""  # why the hub was not asked; empty: it was


# Gets the bytes that are there and those of all files.
OnProgress = Callable[[int, int], None]


def pull(name: HubName, on_progress: OnProgress, hub: HubSettings, with_projector: bool = True) -> PulledModel:
    """Downloads what is not there; returns where the files are. Raises HubError."""
    client = HubClient(name, hub.hf_token, hub.why_offline)
    listing = client.list()
    chosen = choose(listing.files, name, with_projector)
    _check_room(client, listing, chosen)
    total, done = sum(file.size for file in chosen.all), 0
    places: dict[str, Path] = {}
    on_progress(0, total)
    for file in chosen.all:
        places[file.path] = client.fetch(listing.commit, file, partial(_report, on_progress, done, total))
        done += file.size
    if not listing.is_offline:
        client.cache.note(name.revision, listing.commit)
    return PulledModel(
        model=str(places[chosen.parts[0].path]),
        mmproj=str(places[chosen.projector.path]) if chosen.projector else "",
        commit=listing.commit,
        size=total,
        n_files=len(places),
        offline=listing.reason,
    )


def _report(on_progress: OnProgress, before: int, total: int, n_bytes: int) -> None:
    """Reports the bytes of one file with those of the files before it."""
    on_progress(before + n_bytes, total)


def _check_room(client: HubClient, listing: RepoListing, files: ChosenFiles) -> None:
    """Raises HubError where the disk cannot hold what is to be downloaded."""
    missing = sum(_missing(client, listing.commit, file) for file in files.all)
    folder = next(path for path in (client.folder, *client.folder.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise HubError(
            f"{client.name.id} needs {missing / 1e9:.2f} GB more, and {folder} has {free / 1e9:.2f} GB left: make "
            "room (corosrv models rm NAME), or choose another folder with HF_HOME"
        )


def _missing(client: HubClient, commit: str, file: RepoFile) -> int:
    """Returns the bytes of a file that are still to come."""
    if client.cache.file(commit, file.path).is_file():
        return 0
    blob = client.cache.blob(file.sha256) if file.sha256 else None
    begun = blob.with_name(blob.name + ".incomplete") if blob else None
    return file.size - (begun.stat().st_size if begun and begun.is_file() else 0)


class PullProgress(msgspec.Struct, tag="progress"):
    """Tells how many bytes are there, and of how many; 0 of 0 before the hub has answered."""

    bytes: int = 0
    total: int = 0

    def __str__(self) -> str:
        if not self.total:
            return "the hub is asked"
        percent = 100 * self.bytes // self.total
        return f"{self.bytes / 1e6:.0f} of {self.total / 1e6:.0f} MB ({percent} %)"


class Pulled(msgspec.Struct, tag="pulled"):
    """Reports that the files are in the cache."""

    model: PulledModel


class PullFailed(msgspec.Struct, tag="failed"):
    """Reports that the files could not be downloaded, and why."""

    reason: str


PullMessage = PullProgress | Pulled | PullFailed

decoder: msgspec.json.Decoder[PullMessage] = msgspec.json.Decoder(PullMessage)
