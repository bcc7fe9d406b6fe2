"""Asks an upstream whether it is well, and which models it serves."""

from __future__ import annotations

import logging

import gevent
import msgspec

from corosrv.errors import CorosrvError
from corosrv.jobs.forward import ForwardRequest
from corosrv.upstreams.connections import UpstreamConnections
from corosrv.upstreams.exchange import Exchange, ExchangeLimits, is_redirect
from corosrv.upstreams.upstream import Upstream

log = logging.getLogger("corosrv.upstreams")

TIME_LIMIT = 2.0  # seconds that one answer may take
MAX_LISTING = 4 << 20  # bytes
MAX_MODELS = 1000
MAX_NAME = 512  # characters
_LIST = "/v1/models"
_NOT_THERE = (404, 405, 501)


class _Model(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Model] = []


_listing = msgspec.json.Decoder(_Listing)


class Prober:
    """Probes one upstream. Its connection is apart from those of calls, which may all be taken."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._connections = UpstreamConnections(upstream.spec.url, 0)
        self._path = "/health"

    def probe(self) -> str:
        """Returns why the upstream is not well; an empty text if it is. Waits, 4 s at most."""
        try:
            status = self._get(self._path)[0]
            if status in _NOT_THERE and self._path != _LIST:  # it has no such endpoint
                self._path = _LIST
                status = self._get(self._path)[0]
        except CorosrvError as error:
            return str(error)
        if is_redirect(status):
            return f"it answered {status} to {self._path}, a redirect, which is not followed"
        return "" if status < 400 or status in _NOT_THERE else f"it answered {status} to {self._path}"

    def models(self) -> tuple[str, ...] | None:
        """Returns the names of its models; None if it does not say. Waits."""
        if self._upstream.spec.models:
            return self._upstream.spec.models
        try:
            status, body = self._get(_LIST)
            listing = _listing.decode(body) if status == 200 else _Listing()
        except (CorosrvError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("upstream %s does not list its models: %.200s", self._upstream.id, error)
            return None
        names = dict.fromkeys(model.id for model in listing.data if _is_name(model.id))
        if len(names) > MAX_MODELS:
            log.warning("upstream %s lists %d models; %d are served", self._upstream.id, len(names), MAX_MODELS)
        return tuple(names)[:MAX_MODELS] or None

    def _get(self, path: str) -> tuple[int, bytes]:
        upstream = self._upstream
        request = ForwardRequest(method="GET")
        exchange = Exchange(self._connections, ExchangeLimits(TIME_LIMIT, TIME_LIMIT))
        body = bytearray()
        late = CorosrvError(f"it did not answer within {TIME_LIMIT:g} s")
        try:
            with gevent.Timeout(TIME_LIMIT, late):
                head = exchange.ask(upstream.path(path), request, upstream.headers((("Accept", "application/json"),)))
                for piece in exchange.pieces():
                    body += piece
                    if len(body) > MAX_LISTING:
                        raise CorosrvError(f"its answer is longer than {MAX_LISTING >> 20} MiB")
        finally:
            exchange.close(is_whole=False)
        return head.status, bytes(body)

    def close(self) -> None:
        self._connections.close()


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isprintable()
