"""Computes how much memory this process may still take, and how much a model's memory of earlier tokens takes.

The room is what the machine has and what its cgroups leave. The cache is computed as libllama allocates it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAD = 256  # tokens: libllama rounds the context of a slot up to this
_STATE_BYTES = 4  # a recurrent state is kept in 32 bits

# Bytes of a block of numbers, and how many numbers it has; by the names of settings.
_BLOCKS = {
    "f32": (4, 1), "f16": (2, 1), "bf16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32), "q4_1": (20, 32),
    "iq4_nl": (18, 32), "q5_0": (22, 32), "q5_1": (24, 32),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The numbers that one layer keeps of each token, and of each sequence.

    A layer that sees a window of tokens alone keeps all of them here: libllama is asked to, so that a sequence can be
    cut at any token.
    """

    key_width: int = 0
    value_width: int = 0
    state: int = 0  # of a recurrent layer, whatever the length of its sequence


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """The types of cached keys and values, by the names of settings."""

    key: str = "f16"
    value: str = "f16"


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The memory of a model, layer by layer."""

    layers: tuple[LayerCache, ...] = ()

    def bytes(self, slots: int, context: int, types: CacheTypes, is_shared: bool = False) -> int:
        """Returns the bytes that `slots` sequences of `context` tokens take; `is_shared`: all tokens lie together."""
        cells = padded(slots * context) if is_shared else slots * padded(context)
        return cells * self.token_bytes(types) + slots * self.state_bytes

    def token_bytes(self, types: CacheTypes) -> int:
        return sum(_row_bytes(it.key_width, types.key) + _row_bytes(it.value_width, types.value) for it in self.layers)

    @property
    def state_bytes(self) -> int:
        """The bytes that each sequence takes, whatever its length."""
        return _STATE_BYTES * sum(layer.state for layer in self.layers)


def padded(context: int) -> int:
    """Returns the tokens that a cache of so many really has room for."""
    return -(-context // PAD) * PAD


def _row_bytes(width: int, kind: str) -> int:
    size, numbers = _BLOCKS[kind]
    return -(-width // numbers) * size


_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
# Pages of files count as used in a cgroup, and are given back when memory is asked for.
_RECLAIMED = re.compile(r"^(?:total_)?(?:inactive|active)_file (\d+)$", re.MULTILINE)
_V1_TOTALS = re.compile(r"^total_(?:inactive|active)_file (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that are free, and what says so, in words for the operator."""

    free: int
    source: str

    def at_most(self, limit: int, source: str) -> Room:
        """Returns the smaller of this room and a limit; 0 is none."""
        return Room(limit, source) if 0 < limit < self.free else self


@dataclass(frozen=True, slots=True)
class CgroupFiles:
    """The texts of one cgroup's files, empty where there is no such file."""

    limit: str
    used: str
    stat: str

    @property
    def free(self) -> int | None:
        """The bytes that the cgroup leaves; None where it has no limit."""
        if not self.limit.strip().isdigit() or not self.used.strip().isdigit():
            return None  # "max", or no such controller
        reclaimed = _V1_TOTALS.findall(self.stat) or _RECLAIMED.findall(self.stat)
        return max(0, int(self.limit) - int(self.used) + sum(map(int, reclaimed)))


def available_in(meminfo: str) -> int | None:
    """Returns the bytes that /proc/meminfo reports as available; None if it reports none."""
    match = re.search(r"^MemAvailable: +(\d+) kB$", meminfo, re.MULTILINE)
    return None if match is None else 1024 * int(match[1])


def cgroup_folders(membership: str, root: Path = _CGROUPS) -> Iterator[Path]:
    """Yields the folders of the memory cgroups that /proc/self/cgroup names, each with those above it.

    In a container the names may be those outside of it: the topmost folder is then the container's own.
    """
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number != "0" and "memory" not in controllers.split(","):
            continue
        top = root if number == "0" else root / "memory"
        parts = [part for part in name.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def read_room(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Room | None:
    """Reads how much memory is free; None where nothing tells."""
    rooms = []
    available = available_in(_text(proc / "meminfo"))
    if available is not None:
        rooms.append(Room(available, "free on this machine"))
    for folder in cgroup_folders(_text(proc / "self" / "cgroup"), cgroups):
        free = _cgroup(folder).free
        if free is not None:
            rooms.append(Room(free, "left by the cgroup's limit"))
    return min(rooms, key=lambda room: room.free, default=None)


def _cgroup(folder: Path) -> CgroupFiles:
    """Reads the files of a cgroup, of version 2 or 1."""
    limit, used = _text(folder / "memory.max"), _text(folder / "memory.current")
    if not limit:
        limit, used = _text(folder / "memory.limit_in_bytes"), _text(folder / "memory.usage_in_bytes")
    return CgroupFiles(limit, used, _text(folder / "memory.stat"))


def _text(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""
