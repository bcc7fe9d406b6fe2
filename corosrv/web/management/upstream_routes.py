"""Upstreams over the management API: added, shown and removed while calls wait for them."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from http import HTTPStatus
from typing import Any

import gevent
import msgspec
from flask import Blueprint, Response, request

from corosrv.base.errors import Refused, ShuttingDown
from corosrv.contracts.settings.sources import UPSTREAM_KEY
from corosrv.fleet.upstreams.aborter import AbortKind
from corosrv.fleet.upstreams.pool import DRAIN_TIMEOUT, UpstreamPool
from corosrv.fleet.upstreams.spec import ChangesFile, UpstreamChange, UpstreamSpec, parse
from corosrv.fleet.upstreams.upstream import Upstream
from corosrv.web.http.openapi import without_key
from corosrv.web.http.siblings import AskOthers, OtherAnswer
from corosrv.web.management.listener import TokenGuard
from corosrv.web.management.routes import MAX_BODY, decode_body


def upstream_view(upstream: Upstream, now: float) -> dict[str, Any]:
    """Shows an upstream: what was said of it, and how it does. `now`: of time.monotonic()."""
    spec, stats = upstream.spec, upstream.stats
    return {
        "id": upstream.id,
        "url": spec.url,
        "state": upstream.state.value,
        "reason": upstream.reason,
        "models": list(upstream.models),
        "concurrency": upstream.concurrency,
        "concurrency_from": upstream.concurrency_from,
        "weight": spec.weight,
        "api_key_env": spec.api_key_env,
        "labels": dict(spec.labels),
        "aborts": upstream.takes_aborts,
        "in_flight": upstream.in_flight,
        "age_ms": round((now - upstream.added_at) * 1000),
        "ok": stats.ok,
        "aborted": stats.aborted,
        "failed": dict(stats.failed),
        "tokens_per_s": round(stats.n_tokens / stats.token_s, 3) if stats.token_s else None,
        "first_byte_ms": round(stats.first_bytes.sum / stats.n_first_bytes * 1000, 3) if stats.n_first_bytes else None,
    }


MAX_TIMEOUT = 86_400.0  # seconds
_MODES = ("drain", "abort")
_LOADS = "/get_loads"
_LOOK = 1.0  # seconds between two looks at what other processes have changed


class UpstreamBody(msgspec.Struct, forbid_unknown_fields=True):
    """Holds the body of POST /workers."""

    url: str
    model: str | None = None
    models: list[str] = []
    concurrency: int | None = None
    weight: float = 1.0
    api_key_env: str = ""
    labels: dict[str, str] = {}
    abort: AbortKind = AbortKind.AUTO

    def spec(self) -> UpstreamSpec:
        """Returns what the body says. Raises Refused, which names the field."""
        return UpstreamSpec(
            url=self.url,
            models=tuple(self.models if self.model is None else dict.fromkeys([self.model, *self.models])),
            concurrency=self.concurrency,
            weight=self.weight,
            api_key_env=self.api_key_env,
            labels=self.labels,
            abort=self.abort,
        )


class AbortBody(msgspec.Struct):
    """Holds the body of POST /abort_request, of which SGLang's clients may send more."""

    rid: str = ""
    abort_all: bool = False


class ManagedUpstreams:
    """Adds and removes upstreams as operators say, in all processes of a server. Belongs to the hub's thread."""

    def __init__(
        self, pool: UpstreamPool, key_variables: Collection[str] = (), changes: ChangesFile | None = None
    ) -> None:
        """`key_variables`: environment variables whose values may be sent to an upstream as its key, beside those that
        are named as keys of upstreams. `changes`: what all processes have changed; None where there is this one alone.
        """
        self.pool = pool
        self._key_variables = key_variables
        self._changes = changes
        self._looking: gevent.Greenlet | None = None

    def start(self) -> None:
        """Begins to look for what other processes have changed. Twice is harmless."""
        if self._changes is not None and self._looking is None:
            self._looking = gevent.spawn(self._look_on)

    def close(self) -> None:
        """Looks no more. Twice is harmless."""
        if self._looking is not None:
            self._looking.kill(block=False)

    def add(self, spec: UpstreamSpec) -> tuple[Upstream, bool]:
        """Adds an upstream, and returns it and whether it is new. Raises Refused, and ShuttingDown."""
        _check_key_variable(spec.api_key_env, self._key_variables)
        with self._changing() as note:
            upstream, is_new = self.pool.add(spec)
            if is_new:
                note(spec.url, spec, DRAIN_TIMEOUT)
        return upstream, is_new

    def remove(self, name: str, *, abort: bool = False, timeout: float = DRAIN_TIMEOUT) -> Upstream:
        """Removes the upstream with this id or URL, and returns it; see UpstreamPool.remove. Raises NotFound."""
        with self._changing() as note:
            upstream = self.pool.find(name)
            if abort or not upstream.is_draining:
                note(upstream.spec.url, None, 0.0 if abort else timeout)
            self.pool.remove(upstream, abort=abort, timeout=timeout)
        return upstream

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Callable[[str, UpstreamSpec | None, float], None]]:
        if self._changes is None:
            yield lambda url, spec, timeout: None
            return
        with self._changes.changing() as note:
            self.look()
            yield note

    def _look_on(self) -> None:
        while True:
            self.look()
            gevent.sleep(_LOOK)

    def look(self) -> None:
        """Makes the changes that other processes have made since the last look. Never waits."""
        for change in () if self._changes is None else self._changes.look():
            with contextlib.suppress(ShuttingDown):
                self._follow(change)

    def _follow(self, change: UpstreamChange) -> None:
        for upstream in self.pool.upstreams:
            if upstream.spec.url == change.url and upstream.spec != change.spec:
                self.pool.remove(upstream, abort=not change.timeout, timeout=change.timeout)
        if change.spec is not None:
            self.pool.add(change.spec)


def blueprint(upstreams: ManagedUpstreams) -> Blueprint:
    """Makes the routes for the management API, which looks after who may call them."""
    api = Blueprint("upstreams", __name__)
    _add_workers(api, upstreams)
    _add_routers_paths(api, upstreams)
    return api


def router_blueprint(upstreams: ManagedUpstreams, guard: TokenGuard, ask_other_workers: AskOthers) -> Blueprint:
    """Makes the same routes for a server's own port, where `guard` lets requests pass, and no API key does.

    What changes something is done by all worker processes, and what is counted is counted in all of them.
    """
    api = Blueprint("router", __name__)

    @api.before_request
    def check() -> None:
        guard.check()
        request.max_content_length = MAX_BODY

    @api.after_request
    def ask_others(answer: Response) -> Response:
        is_for_all = request.method != "GET" or request.path.endswith(_LOADS)
        if not is_for_all or answer.status_code >= HTTPStatus.BAD_REQUEST:
            return answer
        others = ask_other_workers(request, request.get_data())
        if answer.is_json and others:
            answer.set_data(msgspec.json.encode(_summed(answer.get_json(), others)))
        return answer

    _add_workers(api, upstreams)
    _add_routers_paths(api, upstreams)
    return api


def _summed(own: dict[str, Any], other_answers: list[OtherAnswer]) -> dict[str, Any]:
    """Returns an answer of /get_loads or /abort_request with what other worker processes have counted, or any other."""
    bodies = [msgspec.json.decode(other.body) for other in other_answers if other.status == HTTPStatus.OK]
    if "aborted" in own:
        return {"aborted": sum((body["aborted"] for body in bodies), own["aborted"])}
    if "workers" not in own:
        return own
    loads = Counter({row["worker"]: row["load"] for row in own["workers"]})
    for body in bodies:
        loads.update({row["worker"]: row["load"] for row in body["workers"]})
    return {"workers": [{"worker": worker, "load": load} for worker, load in loads.items()]}


def _check_key_variable(name: str, key_variables: Collection[str]) -> None:
    """Raises Refused for a variable that holds no key of an upstream: its value would go to whoever is at the URL."""
    if name and not name.startswith(UPSTREAM_KEY) and name not in key_variables:
        words = f"must name a variable that begins with {UPSTREAM_KEY}, or one of the upstreams named at the start"
        raise Refused(f"api_key_env {words}, not {name[:60]!r}", "api_key_env")


def _add_workers(api: Blueprint, upstreams: ManagedUpstreams) -> None:
    pool = upstreams.pool

    @api.post("/workers")
    @without_key
    def add() -> tuple[dict[str, Any], int]:
        upstream, is_new = upstreams.add(decode_body(UpstreamBody).spec())
        return _short_view(upstream), 202 if is_new else 200

    @api.get("/workers")
    @without_key
    def all_upstreams() -> dict[str, Any]:
        now = time.monotonic()
        return {"workers": [upstream_view(upstream, now) for upstream in pool.upstreams]}

    @api.get("/workers/<path:name>")
    @without_key
    def one_upstream(name: str) -> dict[str, Any]:
        return upstream_view(pool.find(name), time.monotonic())

    @api.delete("/workers/<path:name>")
    @without_key
    def remove(name: str) -> tuple[dict[str, Any], int]:
        mode = request.args.get("mode", "drain")
        if mode not in _MODES:
            raise Refused(f"mode must be one of {', '.join(_MODES)}, not {mode[:40]!r}", "mode")
        upstream = upstreams.remove(name, abort=mode == "abort", timeout=_timeout())
        return _short_view(upstream), 202


def _add_routers_paths(api: Blueprint, upstreams: ManagedUpstreams) -> None:
    """Adds the other paths of SGLang's router."""
    pool = upstreams.pool

    @api.post("/add_worker")
    @without_key
    def add_worker() -> Response:
        upstream, is_new = upstreams.add(parse(_url()))
        return _text(f"Successfully added worker: {upstream.spec.url}" if is_new else "Worker is there already")

    @api.post("/remove_worker")
    @without_key
    def remove_worker() -> Response:
        upstream = upstreams.remove(parse(_url()).url)
        return _text(f"Successfully removed worker: {upstream.spec.url}")

    @api.get("/list_workers")
    @without_key
    def list_workers() -> dict[str, Any]:
        return {"urls": [upstream.spec.url for upstream in pool.upstreams if not upstream.is_draining]}

    @api.get(_LOADS)
    @without_key
    def get_loads() -> dict[str, Any]:
        loads = [{"worker": upstream.spec.url, "load": upstream.in_flight} for upstream in pool.upstreams]
        return {"workers": loads}

    @api.post("/abort_request")
    @without_key
    def abort_request() -> dict[str, Any]:
        body = decode_body(AbortBody)
        if body.abort_all == bool(body.rid):
            raise Refused("abort_all must be true, or rid the X-Request-Id of a request", "abort_all")
        return {"aborted": pool.abort(body.rid)}


def _short_view(upstream: Upstream) -> dict[str, Any]:
    return {"id": upstream.id, "url": upstream.spec.url, "state": upstream.state.value}


def _timeout() -> float:
    text = request.args.get("timeout")
    if text is None:
        return DRAIN_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_TIMEOUT:
        raise Refused(f"timeout must be from 0 to {MAX_TIMEOUT:g} seconds, not {text[:40]!r}", "timeout")
    return seconds


def _url() -> str:
    url = request.args.get("url", "")
    if not url:
        raise Refused("url is required, in the query", "url")
    return url


def _text(words: str) -> Response:
    return Response(words + "\n", mimetype="text/plain")
