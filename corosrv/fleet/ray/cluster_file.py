"""Reads a cluster file: the fronts, engines and pools that a Ray cluster runs. Needs no ray."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import PARTS
from corosrv.contracts.settings.sources import names, parse_toml

# Settings that the wing itself gives each process.
OWN_SETTINGS = {"app_dir", "elastic", "joinable", "model", "run_dir", "worker_app"}
OWN_SETTINGS |= {f"mgmt_{name}" for name in ("certfile", "host", "keyfile", "port", "token_file")}
SettingValue = str | int | float | bool
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


class ProcessSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what every kind of process has in the file: what it takes of its node, and its settings."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: float = 0.0
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    settings: dict[str, SettingValue] = {}


class FrontSection(ProcessSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the section `[fronts]`. `is_open` stands there as `open`: no API key is needed."""

    count: int = 1
    port: int = 8080
    is_open: bool = msgspec.field(default=False, name="open")


class ReplicatedSection(ProcessSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what has a name and replicas: a number, or the least and the most. `slo`: seconds that calls may take."""

    name: str
    replicas: int | tuple[int, int] = 1
    slo: float = 60.0

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the most replicas."""
        return (self.replicas, self.replicas) if isinstance(self.replicas, int) else self.replicas


class EngineSection(ReplicatedSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds one of `[[engines]]`. `concurrency`: calls at once of each front; 0: what the engine itself tells."""

    model: str
    concurrency: int = 0


class PoolSection(ReplicatedSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds one of `[[pools]]`: workers of an application. `pool` is needed where the application has several."""

    app: str
    app_dir: str = ""
    pool: str = ""
    factory: bool = False


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a cluster file. `listen`: `loopback`, or `node` for the address that Ray knows each node by."""

    listen: str = "loopback"
    fronts: FrontSection = msgspec.field(default_factory=FrontSection)
    engines: list[EngineSection] = []
    pools: list[PoolSection] = []


class Kind(str, Enum):
    """The kind of process that an actor owns."""

    FRONT = "front"
    ENGINE = "engine"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Processes of one kind that are alike. `version` changes with all that a running process would not follow."""

    kind: Kind
    name: str
    least: int
    most: int
    version: str
    section: ProcessSection
    slo: float = 60.0

    @property
    def key(self) -> str:
        return f"{self.kind.value}:{self.name}"


def read_cluster_file(path: Path) -> ClusterFile:
    """Reads and checks a file. Raises SettingsError, which names the member."""
    try:
        values = parse_toml(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"the cluster file {path} cannot be read: {error}") from None
    return convert(values, str(path))


def convert(values: Any, source: str) -> ClusterFile:
    """Makes a cluster file of plain values. Raises SettingsError, which names the member."""
    try:
        cluster = msgspec.convert(values, ClusterFile)
    except msgspec.ValidationError as error:
        raise SettingsError(f"the cluster file {source}: {error}") from None
    for place, words in _flaws(cluster):
        raise SettingsError(f"the cluster file {source}: {place} {words}")
    return cluster


def groups_of(cluster: ClusterFile) -> list[ProcessGroup]:
    """Returns the groups of processes that a file asks for, the fronts first."""
    is_joinable = bool(cluster.pools)
    fronts = cluster.fronts
    groups = [_group(Kind.FRONT, "fronts", (fronts.count, fronts.count), fronts, (cluster.listen, is_joinable))]
    groups += [_group(Kind.ENGINE, one.name, one.bounds, one, (cluster.listen,), one.slo) for one in cluster.engines]
    groups += [_group(Kind.POOL, one.name, one.bounds, one, (), one.slo) for one in cluster.pools]
    return groups


def _group(
    kind: Kind, name: str, bounds: tuple[int, int], section: ProcessSection, shared: tuple[Any, ...], slo: float = 60.0
) -> ProcessGroup:
    values = msgspec.to_builtins(section)
    for free in ("replicas", "count", "slo"):  # a running process need not be replaced for these
        values.pop(free, None)
    text = msgspec.json.encode([values, shared], order="deterministic")
    return ProcessGroup(kind, name, *bounds, hashlib.sha256(text).hexdigest()[:12], section, slo)


def _flaws(cluster: ClusterFile) -> Iterator[tuple[str, str]]:
    """Yields each member that is wrong, and what it must be."""
    if cluster.listen not in ("loopback", "node"):
        yield "listen", f"must be 'loopback' or 'node', not {cluster.listen!r}"
    fronts = cluster.fronts
    if fronts.count < 1:
        yield "fronts.count", f"must be at least 1, not {fronts.count}"
    if not 0 <= fronts.port <= 65535:
        yield "fronts.port", f"must be from 0 to 65535, not {fronts.port}"
    if not cluster.engines and not cluster.pools:
        yield "engines", "must have an entry, unless there are pools"
    if cluster.pools and fronts.count > 1:
        yield "fronts.count", "must be 1 with pools: each runs the calls of the front that its workers have joined"
    if cluster.listen == "node" and not fronts.is_open and not _has_keys(fronts.settings):
        yield "fronts.settings", "must name api_keys_file or api_keys where listen = 'node', unless fronts.open is true"
    yield from _flaws_of_section("fronts", fronts)
    for kind in ("engines", "pools"):
        seen: set[str] = set()
        for index, one in enumerate(getattr(cluster, kind)):
            place = f"{kind}[{index}]"
            yield from _flaws_of_replicas(place, one)
            yield from _flaws_of_section(place, one)
            if one.name in seen:
                yield f"{place}.name", f"{one.name!r} is that of another one"
            seen.add(one.name)


def _has_keys(settings: dict[str, SettingValue]) -> bool:
    return any(settings.get(name) for name in ("api_keys", "api_keys_file"))


def _flaws_of_replicas(place: str, section: ReplicatedSection) -> Iterator[tuple[str, str]]:
    least, most = section.bounds
    if not _NAME.fullmatch(section.name):
        yield f"{place}.name", f"must be 1 to 40 letters, digits, dots, dashes and underscores, not {section.name!r}"
    if least < 1:
        yield f"{place}.replicas", f"must be at least 1, not {least}: no group is scaled to nothing"
    if most < least:
        yield f"{place}.replicas", f"must be [least, most], not [{least}, {most}]"
    if section.slo <= 0:
        yield f"{place}.slo", f"must be more than 0 seconds, not {section.slo:g}"
    if isinstance(section, PoolSection) and not isinstance(section.replicas, int):
        yield f"{place}.replicas", "must be a number: pools are scaled by hand, with corosrv ray scale"
    if isinstance(section, EngineSection):
        if not section.model:
            yield f"{place}.model", "must name a model"
        if section.concurrency < 0:
            yield f"{place}.concurrency", f"must be at least 0, not {section.concurrency}"


def _flaws_of_section(place: str, section: ProcessSection) -> Iterator[tuple[str, str]]:
    known = names(PARTS)
    for name in section.settings:
        if name in OWN_SETTINGS:
            yield f"{place}.settings.{name}", "is given by corosrv ray itself"
        if name not in known:
            yield f"{place}.settings.{name}", "is no setting: see corosrv config --all"
    if isinstance(section, PoolSection) and section.settings:
        yield f"{place}.settings", "must be empty: workers have the settings of the front that they join"
    for name, value in {"cpus": section.cpus, "gpus": section.gpus, "memory_mb": section.memory_mb}.items():
        if value < 0:
            yield f"{place}.{name}", f"must be at least 0, not {value:g}"
