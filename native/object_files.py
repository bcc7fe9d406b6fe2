"""Says whether an object file is as its source, headers and compiler's flags are: what make does, for setuptools.

Beside each object stand a list of the files that it was made of (`.d`, written by the compiler) and the command that
made it (`.command`, written before that ran).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def is_current(object_file: Path, command: Sequence[str]) -> bool:
    """Returns whether this command made the object, of files none of which has changed since it began."""
    record = _command_file(object_file)
    try:
        if not object_file.is_file() or record.read_text() != "\n".join(command):
            return False
        begun = record.stat().st_mtime_ns
        return all(Path(name).stat().st_mtime_ns < begun for name in dependencies(list_file(object_file).read_text()))
    except OSError:  # a file is gone, or was never there
        return False


def begin(object_file: Path, command: Sequence[str]) -> None:
    """Records the command that is going to make an object, and removes an older object."""
    object_file.parent.mkdir(parents=True, exist_ok=True)
    object_file.unlink(missing_ok=True)
    _command_file(object_file).write_text("\n".join(command))


def list_file(object_file: Path) -> Path:
    """Returns where the compiler is to list what an object depends on, as a rule of make."""
    return object_file.with_suffix(".d")


def dependencies(rule: str) -> list[str]:
    """Returns the files that a rule of make names behind its colon."""
    _, _, names = rule.replace("\\\n", " ").partition(": ")
    return [name.replace("\\ ", " ") for name in re.findall(r"(?:\\ |\S)+", names)]


def _command_file(object_file: Path) -> Path:
    return object_file.with_suffix(".command")
