"""Directories for nobody else's eyes, made by whoever first has something to put there."""

from __future__ import annotations

import os


def make_private(path: str) -> None:
    """Makes a directory, and those above it that are missing. One that is there is left as it is. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_private(os.path.dirname(path))
        make_private(path)
