"""Defines errors of models that come from a hub."""

from __future__ import annotations

from corosrv.base.errors.base import CorosrvError


class HubError(CorosrvError):
    """A model of a hub cannot be had; the message says why, and what to do."""


class HubMissing(HubError):
    """The library that speaks to hubs is not installed."""

    def __init__(self) -> None:
        super().__init__("models named hf:... need the library huggingface_hub: pip install 'corosrv[hub]'")
