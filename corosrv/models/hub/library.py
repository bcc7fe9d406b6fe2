"""The library that speaks to hubs, which an extra installs: imported late, for it takes half a second."""

from __future__ import annotations

import importlib.util
from typing import Any

from corosrv.base.errors import HubMissing


def check_installed() -> None:
    """Raises HubMissing where the library is not installed; imports nothing of it."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise HubMissing


def load() -> Any:
    """Imports the library. Raises HubMissing."""
    check_installed()
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.utils

    return huggingface_hub
