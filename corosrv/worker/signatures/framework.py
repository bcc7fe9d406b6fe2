"""Which modules are no author's: this package's and cog's."""

from __future__ import annotations


def is_framework(module: str) -> bool:
    return module.split(".")[0] == "cog" or module.startswith("corosrv.worker.")
