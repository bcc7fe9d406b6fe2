"""Settings of the management API. Checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.contracts.settings import sources
from corosrv.contracts.settings.checks import Check, between, none_or
from corosrv.contracts.settings.sources import setting

ADDRESS = Check(lambda text: bool(text.strip()), "must be an address to listen on")


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """Says where operators find a server that has workers or upstreams to manage."""

    run_dir: str = setting(
        "",
        "folder for the management socket, which nobody else may enter; made if missing; empty: one of this user's",
    )
    mgmt_port: int | None = setting(
        None,
        "port for the management API over TCP, beside its socket; needs --mgmt-token-file; none if not set",
        check=none_or(between(0, 65535)),
    )
    mgmt_host: str = setting("127.0.0.1", "address of that port", check=ADDRESS)
    mgmt_token_file: str = setting("", "file with the token that calls to --mgmt-port must carry")

    def __post_init__(self) -> None:
        sources.check(self)
