"""Flask without the parts that no route of corosrv uses, each of which costs every request some microseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from flask import Flask, Request
from flask.sessions import NullSession, SessionInterface, SessionMixin
from werkzeug.routing import MapAdapter

T = TypeVar("T")

_NO_SESSION = NullSession()


def _text(value: str) -> str:
    """Decodes text of a WSGI environ, where each byte of UTF-8 is a character."""
    return value if value.isascii() else value.encode("latin1").decode(errors="replace")


def current(proxy: T) -> T:
    """Returns what one of Flask's proxies stands for now: each use of the proxy would look it up once more."""
    return proxy._get_current_object()  # type: ignore[attr-defined, no-any-return]


class LeanRequest(Request):
    """A request that looks up once which blueprints it belongs to, and not before, behind and after its view."""

    @cached_property
    def blueprints(self) -> list[str]:
        return super().blueprints


class _NoSessions(SessionInterface):
    """Every request has the same session, which is empty and is never saved."""

    def open_session(self, app: Flask, request: Request) -> SessionMixin:
        return _NO_SESSION

    def is_null_session(self, obj: object) -> bool:
        return True

    def save_session(self, app: Flask, session: SessionMixin, response: Any) -> None:
        pass


class LeanFlask(Flask):
    """An app without sessions and redirects, whose views and hooks are plain functions."""

    session_interface = _NoSessions()
    request_class = LeanRequest

    def __init__(self, name: str) -> None:
        super().__init__(name, static_folder=None)
        # A path with two slashes is unknown. Flask would redirect, to the host that the client names.
        self.url_map.merge_slashes = False

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Routes by path alone; Flask's own reads and normalises the Host for that, twice."""
        if request is None:
            return None
        environ = request.environ
        return MapAdapter(
            self.url_map,
            server_name="localhost",  # no route depends on it, and none redirects
            script_name=_text(environ.get("SCRIPT_NAME", "")) or "/",
            subdomain="",
            url_scheme=environ["wsgi.url_scheme"],
            path_info=_text(environ.get("PATH_INFO", "")),
            default_method=environ["REQUEST_METHOD"],
            query_args=environ.get("QUERY_STRING", ""),
        )

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func
