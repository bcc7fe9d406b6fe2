"""Upstreams over the management API: added, shown and removed while calls wait for them."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
from flask import Blueprint, Response, request

from corosrv.errors import Refused
from corosrv.management.routes import decode_body
from corosrv.management.upstream_views import upstream_view
from corosrv.upstreams.abort import AbortKind
from corosrv.upstreams.pool import DRAIN_TIMEOUT, UpstreamPool
from corosrv.upstreams.spec import DEFAULT_CONCURRENCY, UpstreamSpec, parse
from corosrv.upstreams.upstream import Upstream

MAX_TIMEOUT = 86_400.0  # seconds
_MODES = ("drain", "abort")


class UpstreamBody(msgspec.Struct, forbid_unknown_fields=True):
    """Holds the body of POST /workers."""

    url: str
    model: str | None = None
    models: list[str] = []
    concurrency: int = DEFAULT_CONCURRENCY
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


def blueprint(pool: UpstreamPool) -> Blueprint:
    """Makes the routes."""
    api = Blueprint("upstreams", __name__)
    _add_workers(api, pool)
    _add_routers_paths(api, pool)
    return api


def _add_workers(api: Blueprint, pool: UpstreamPool) -> None:
    @api.post("/workers")
    def add() -> tuple[dict[str, Any], int]:
        upstream, is_new = pool.add(decode_body(UpstreamBody).spec())
        return _short_view(upstream), 202 if is_new else 200

    @api.get("/workers")
    def all_upstreams() -> dict[str, Any]:
        now = time.monotonic()
        return {"workers": [upstream_view(upstream, now) for upstream in pool.upstreams]}

    @api.get("/workers/<path:name>")
    def one_upstream(name: str) -> dict[str, Any]:
        return upstream_view(pool.find(name), time.monotonic())

    @api.delete("/workers/<path:name>")
    def remove(name: str) -> tuple[dict[str, Any], int]:
        upstream = pool.find(name)
        mode = request.args.get("mode", "drain")
        if mode not in _MODES:
            raise Refused(f"mode must be one of {', '.join(_MODES)}, not {mode[:40]!r}", "mode")
        pool.remove(upstream, abort=mode == "abort", timeout=_timeout())
        return _short_view(upstream), 202


def _add_routers_paths(api: Blueprint, pool: UpstreamPool) -> None:
    """Adds the paths that SGLang's router had before /workers."""

    @api.post("/add_worker")
    def add_worker() -> Response:
        upstream, is_new = pool.add(parse(_url()))
        return _text(f"Successfully added worker: {upstream.spec.url}" if is_new else "Worker is there already")

    @api.post("/remove_worker")
    def remove_worker() -> Response:
        upstream = pool.find(parse(_url()).url)
        pool.remove(upstream)
        return _text(f"Successfully removed worker: {upstream.spec.url}")

    @api.get("/list_workers")
    def list_workers() -> dict[str, Any]:
        return {"urls": [upstream.spec.url for upstream in pool.upstreams if not upstream.is_draining]}


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
