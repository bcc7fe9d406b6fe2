"""Flask without the parts that no route of corosrv uses, each of which costs every request some microseconds.

`caller` names the caller of a request, so that prompts and stored responses of one are kept from all others. A
`Shortcut` answers requests without Flask, whose contexts, hooks and responses cost most of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import IO, TYPE_CHECKING, Any, TypeVar

from flask import Flask, Request, g
from flask.sessions import NullSession, SessionInterface, SessionMixin
from werkzeug.routing import Map, MapAdapter, Rule
from werkzeug.wsgi import get_input_stream

from corosrv.contracts.jobs.terms import Flow
from corosrv.web.key_account import KeyAccount

T = TypeVar("T")

_NO_SESSION = NullSession()
_RULE_ALONE = {"return_rule": True}  # how Flask asks for the rule of a request
_MAX_KNOWN = 1024  # paths of the clients' choice
_MAX_PATH = 256  # characters of one


def _text(value: str) -> str:
    """Decodes text of a WSGI environ, where each byte of UTF-8 is a character."""
    return value if value.isascii() else value.encode("latin1").decode(errors="replace")


if TYPE_CHECKING:

    def current(proxy: T) -> T:
        """Returns what one of Flask's proxies stands for now: each use of the proxy would look it up once more."""

else:
    current = methodcaller("_get_current_object")


class LeanRequest(Request):
    """A request that looks up once which blueprints it belongs to, and not before, behind and after its view."""

    @cached_property
    def blueprints(self) -> list[str]:
        return super().blueprints


class BareRequest:
    """A request as its WSGI environment has it, for what needs nothing of Flask's."""

    def __init__(self, environ: dict[str, Any]) -> None:
        self.environ = environ
        self.max_content_length: int | None = None

    @property
    def stream(self) -> IO[bytes]:
        return get_input_stream(self.environ, max_content_length=self.max_content_length)


AnyRequest = Request | BareRequest

VISIT = "corosrv.visit"  # in the WSGI environment: that of a request which a shortcut could not answer


@dataclass(slots=True)
class Visit:
    """The sender and the time of a request. `error`: why a shortcut did not answer it, which Flask does then."""

    request_id: str
    began: float  # of time.monotonic()
    caller: str = ""
    account: KeyAccount | None = None
    flow: Flow | None = None
    error: Exception | None = None


# Answers a request without Flask, as a WSGI application does; returns None for one that Flask is to answer.
Shortcut = Callable[[dict[str, Any], Any], Iterable[bytes] | None]


class LeanMap(Map):
    """Maps paths to an app's routes, and remembers where each short path and method led lately, with its arguments."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._known: dict[tuple[str, str], tuple[Rule, dict[str, Any]]] = {}

    def recall(self, path: str, method: str) -> tuple[Rule, dict[str, Any]] | None:
        """Returns the match that was kept for a path and a method; None if there is none."""
        if (match := self._known.get((path, method))) is None:
            return None
        rule, arguments = match
        return rule, arguments.copy()

    def keep(self, path: str, method: str, rule: Rule, arguments: dict[str, Any]) -> None:
        """Keeps a match. Forgets all others where there are too many: clients choose the paths."""
        if len(path) > _MAX_PATH:
            return
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[path, method] = rule, arguments.copy()


class _LeanAdapter(MapAdapter):
    """Finds the rule of one request."""

    map: LeanMap

    def match(self, *arguments: Any, **options: Any) -> Any:
        """Matches as werkzeug does, with the request's own path and method where no others are named."""
        if arguments or options != _RULE_ALONE:
            return super().match(*arguments, **options)
        path, method = self.path_info, self.default_method
        match = self.map.recall(path, method)
        if match is None:
            rule, values = super().match(return_rule=True)
            match = rule, dict(values)
            self.map.keep(path, method, *match)
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
    url_map_class = LeanMap

    def __init__(self, name: str) -> None:
        super().__init__(name, static_folder=None)
        # A path with two slashes is unknown. Flask would redirect, to the host that the client names.
        self.url_map.merge_slashes = False

    def take_shortcut(self, shortcut: Shortcut) -> None:
        """Asks `shortcut` first for each request, from now on."""
        by_flask = self.wsgi_app

        def answer(environ: dict[str, Any], start_response: Any) -> Any:
            body = shortcut(environ, start_response)
            return by_flask(environ, start_response) if body is None else body

        self.wsgi_app = answer  # type: ignore[method-assign]

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Routes by path alone; Flask's own reads and normalises the Host for that, twice."""
        if request is None:
            return None
        environ = request.environ
        return _LeanAdapter(
            self.url_map,
            server_name="localhost",  # no route depends on it, and none redirects
            script_name=_text(name) if (name := environ.get("SCRIPT_NAME")) else "/",
            subdomain="",
            url_scheme=environ["wsgi.url_scheme"],
            path_info=_text(environ.get("PATH_INFO", "")),
            default_method=environ["REQUEST_METHOD"],
            query_args=environ.get("QUERY_STRING", ""),
        )

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func


def caller() -> str:
    """Returns a name for the key of the request at hand, not the key itself; empty where no keys are asked for."""
    return str(current(g).get("corosrv_caller", ""))
