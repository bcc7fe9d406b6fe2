"""The ground of the other wings: errors, waiting, the processor's time, and calls to the outside.

`errors` is the one tree of errors. `waits` lets greenlets wait for threads, descriptors and clocks. `processor` counts
the processor's time and shares it. `outgoing` checks and makes connections to addresses that a client names.

Imports no other wing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.2.0"


def import_late(
    module: str, homes: Mapping[str, str], names_there: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a module that imports each of its names from another one when it is first asked for.

    `homes`: the names that each of the others has, separated by spaces. `names_there`: what some are called there.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def fetch(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), (names_there or {}).get(name, name))
        setattr(sys.modules[module], name, value)
        return value

    return fetch
