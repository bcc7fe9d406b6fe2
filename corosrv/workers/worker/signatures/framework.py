"""Tells modules of this package and of cog from authors' modules."""

from __future__ import annotations


def is_framework(module: str) -> bool:
    return module.split(".")[0] == "cog" or module.startswith("corosrv.workers.worker.")
