"""Decides which requests over TCP may manage a server."""

from __future__ import annotations

import hmac
from pathlib import Path

from flask import request

from corosrv.errors import Forbidden, SettingsError, Unauthorized
from corosrv.http.hosts import Hosts


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
    """Lets requests pass that carry the token. Without one, every program of this machine may, but no web page."""

    def __init__(self, token: str = "") -> None:
        self._token = token.encode()
        self._hosts = Hosts(())

    def check(self) -> None:
        """Raises Unauthorized or Forbidden for the current request."""
        if self._token:
            self._check_token(request.headers.get("Authorization", ""))
            return
        if request.headers.get("Origin") or request.headers.get("Sec-Fetch-Site", "none") != "none":
            raise Forbidden("a web page may not manage this server", "origin_not_allowed")
        self._hosts.check(request)

    def _check_token(self, authorization: str) -> None:
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
            raise Unauthorized("managing this server needs the token of its COROSRV_MGMT_TOKEN_FILE: "
                               "Authorization: Bearer TOKEN")  # fmt: skip
