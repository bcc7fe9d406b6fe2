"""Reads deploy/compose.yaml as compose does: with its variables filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml  # type: ignore[import-untyped]

FILE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def filled(text: str, environ: Mapping[str, str]) -> str:
    """Fills in `${NAME:-default}`."""
    return _VARIABLE.sub(lambda match: environ.get(match[1]) or match[2] or "", text)


def document(environ: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Returns the file with its variables filled in and its anchors resolved."""
    found: dict[str, Any] = yaml.safe_load(filled(FILE.read_text(), environ))
    return found


def services(environ: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Returns the services by name."""
    found: dict[str, Any] = document(environ)["services"]
    return found


def seconds(text: str) -> int:
    """Reads a duration such as 40s."""
    assert text.endswith("s")
    return int(text[:-1])
