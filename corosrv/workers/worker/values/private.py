"""Makes directories that only this user can read."""

from __future__ import annotations

import os


def make_private(path: str) -> None:
    """Makes a directory and its missing parents. Leaves an existing one as it is. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_private(os.path.dirname(path))
        make_private(path)
