"""Chooses among the files of a repository: a model's parts, and the projector of a model that takes images.

The rules are llama-server's (its common/download.cpp): a quantisation is found in file names, whatever its case;
without one Q4_K_M is taken, else Q8_0, else the first model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from corosrv.base.errors import HubError
from corosrv.contracts.settings.hub import HubName, is_plain_path

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
    """Words why a name stands for no file, with those that are there."""
    what = (
        f"has no file {name.file}" if name.file else f"has no model of {name.tag}" if name.tag else "has no GGUF model"
    )
    names = [file.path for file in files][:_MOST_SHOWN]
    more = ", ..." if len(files) > len(names) else ""
    return f"{name.repo} {what}" + (f"; its GGUF files: {', '.join(names)}{more}" if names else "")
