"""Settings of peers, other corosrv servers that answer for this one. Checked and frozen."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import sources
from corosrv.contracts.settings.checks import Check, between
from corosrv.contracts.settings.sources import setting

REPLICA_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TOKEN = Check(
    lambda text: not text or (len(text) >= 8 and text.isascii() and text.isprintable() and " " not in text),
    "must be at least 8 printable ASCII characters without spaces, or empty",
)
IS_ID = Check(
    lambda text: not text or REPLICA_ID.fullmatch(text) is not None,
    "must be 1 to 64 letters, digits, dots, dashes and underscores, or empty",
)


def new_replica_id() -> str:
    """Returns a name that no other replica has."""
    return secrets.token_hex(6)


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """Settings of delegation between replicas, read once at the start."""

    peers: str = setting(
        "",
        "URL of another corosrv that answers what this one cannot, as http://host:8080 or, with the id that it must "
        "have, http://host:8080?id=NAME; may be given several times, in the environment with commas or spaces between",
    )
    peer_token: str = setting(
        "", "secret that all replicas share; without it no other replica is believed", check=TOKEN, is_secret=True
    )
    replica_id: str = setting("", "name of this replica among its peers; empty: a random one", check=IS_ID)
    delegate_on_full: bool = setting(
        False, "1: requests also go to peers while the queue here is full; 0: only for what is not served here"
    )
    delegate_max: int = setting(64, "requests that peers may be answering for this one", check=between(1, 65_536))

    def __post_init__(self) -> None:
        sources.check(self)
        if self.urls and not self.peer_token:
            raise SettingsError(
                "COROSRV_PEER_TOKEN must be set where there are peers: a secret that all replicas share"
            )

    @property
    def is_wanted(self) -> bool:
        """Returns True if this server has peers, or others may have it as one."""
        return bool(self.peer_token)

    @property
    def urls(self) -> tuple[str, ...]:
        """Returns the peers, each with its options."""
        return sources.split_words(self.peers.replace(" ", ","))
