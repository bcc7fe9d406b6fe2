"""Settings of the hub that models named hf:... come from. Checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import setting


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """Settings of downloads; what else the library has is set by its own variables: HF_HOME, HF_ENDPOINT ..."""

    hf_token: str = setting(
        "", "token for models of a hub that need one; empty: HF_TOKEN, or that of `hf auth login`", is_secret=True
    )
    offline: bool = setting(False, "1: models of a hub are taken from the cache, as with HF_HUB_OFFLINE")

    @property
    def why_offline(self) -> str:
        """Returns why no hub is to be asked; empty: one is."""
        return "COROSRV_OFFLINE is set" if self.offline else ""

    def __post_init__(self) -> None:
        sources.check(self)
