"""Flask without the parts that no route of corosrv uses, each of which costs every request some microseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from flask import Flask, Request
from flask.sessions import NullSession, SessionInterface, SessionMixin
from werkzeug.routing import Map, MapAdapter, Rule

T = TypeVar("T")

_NO_SESSION = NullSession()
_RULE_ALONE = {"return_rule": True}  # how Flask asks for the rule of a request


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


class _LeanMap(Map):
    """The routes of an app, and those without arguments by path and method, as soon as they were asked for once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.plain_rules: dict[tuple[str, str], Rule] = {}


class _LeanAdapter(MapAdapter):
    """Finds the rule of one request."""

    map: _LeanMap

    def match(self, *arguments: Any, **options: Any) -> Any:
        """Matches as werkzeug does, with the request's own path and method where no others are named."""
        key = self.path_info, self.default_method
        is_plain = not arguments and options == _RULE_ALONE
        if is_plain and (rule := self.map.plain_rules.get(key)) is not None:
            return rule, {}
        match = super().match(*arguments, **options)
        if is_plain and not match[1]:
            self.map.plain_rules[key] = match[0]
        return match


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
    url_map_class = _LeanMap

    def __init__(self, name: str) -> None:
        super().__init__(name, static_folder=None)
        # A path with two slashes is unknown. Flask would redirect, to the host that the client names.
        self.url_map.merge_slashes = False

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Routes by path alone; Flask's own reads and normalises the Host for that, twice."""
        if request is None:
            return None
        environ = request.environ
        return _LeanAdapter(
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
