"""Settings of the hub that models named hf:... come from. Checked and frozen.

Parses names of models on a Hugging Face hub: `hf:OWNER/REPO[@REVISION][:QUANTISATION | /FILE.gguf]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import setting

HUB = "hf:"

_MAX_NAME = 1024  # characters
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(
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


def parse(text: str) -> HubName:
    """Parses a name, with or without `hf:` before it. Raises SettingsError."""
    match = _NAME.fullmatch(text.removeprefix(HUB)) if len(text) <= _MAX_NAME else None
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
