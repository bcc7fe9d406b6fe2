"""Decides which requests over TCP may manage a server."""

from __future__ import annotations

import hmac
from pathlib import Path

from flask import request

from corosrv.base.errors import SettingsError, Unauthorized


def read_token(path: str) -> str:
    """Returns the token in a file. Raises SettingsError if there is none."""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"COROSRV_MGMT_TOKEN_FILE: {path} cannot be read: {error}") from None
    if not token:
        raise SettingsError(f"COROSRV_MGMT_TOKEN_FILE: {path} is empty")
    return token


class TokenGuard:
    """Admits requests that carry the token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def check(self) -> None:
        """Raises Unauthorized for the current request."""
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
            raise Unauthorized("managing this server needs the token of its COROSRV_MGMT_TOKEN_FILE: "
                               "Authorization: Bearer TOKEN")  # fmt: skip
