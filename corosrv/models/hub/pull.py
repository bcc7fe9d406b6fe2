"""Brings a model of a hub into the cache: its parts and its projector, all of one commit. Blocks.

The process that does this reports to its server by messages, one JSON object a line.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from corosrv.base.errors import HubError
from corosrv.contracts.settings import HubSettings
from corosrv.contracts.settings.model_list import HubName
from corosrv.models.hub.cache import ChosenFiles, RepoFile, choose
from corosrv.models.hub.client import HubClient, RepoListing


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
