"""Asks an upstream whether it is well, which models it serves, and how many calls it runs at once."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import ForwardRequest
from corosrv.fleet.upstreams.aborter import AbortKind
from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import ask_shortly, is_redirect
from corosrv.fleet.upstreams.failures import UpstreamSilent
from corosrv.fleet.upstreams.spec import MAX_CONCURRENCY
from corosrv.fleet.upstreams.upstream import Upstream

log = logging.getLogger("corosrv.upstreams")

# Where servers tell it: llama-server and corosrv, SGLang, and vLLM where its VLLM_SERVER_DEV_MODE is set.
ROOM_PATHS = ("/props", "/get_server_info", "/server_info?config_format=json")
_IN_WORDS = re.compile(r"\bmax_num_seqs=([0-9]{1,6})\b")


class _SchedulerState(msgspec.Struct):
    effective_max_running_requests_per_dp: Any = None


class _Description(msgspec.Struct):
    """Holds the members of all these descriptions that tell it."""

    total_slots: Any = None
    max_running_requests: Any = None
    internal_states: list[_SchedulerState] = []  # of SGLang's workers beside each other
    vllm_config: Any = None  # an object, or its words in older versions


_description = msgspec.json.Decoder(_Description)


def room_of(body: bytes) -> int | None:
    """Returns how many calls a server runs at once, by its answer to one of ROOM_PATHS; None if that does not tell."""
    try:
        told = _description.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    states = [_number(state.effective_max_running_requests_per_dp) for state in told.internal_states]
    together = sum(number for number in states if number) or None
    return _number(told.total_slots) or together or _number(told.max_running_requests) or _of_vllm(told.vllm_config)


def _of_vllm(config: Any) -> int | None:
    if isinstance(config, str):
        found = _IN_WORDS.search(config)
        return _number(int(found[1])) if found else None
    scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
    return _number(scheduler.get("max_num_seqs")) if isinstance(scheduler, dict) else None


def _number(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return min(value, MAX_CONCURRENCY) if is_number else None


MAX_MODELS = 1000
MAX_NAME = 512  # characters
_LIST = "/v1/models"
_NOT_THERE = (404, 405, 501)
_SGLANG = "sglang"  # owns, by its list, the models of an SGLang server
_HEADERS = (("Accept", "application/json"),)


class _ModelOfServer(msgspec.Struct):
    id: str
    owned_by: Any = None


class _Listing(msgspec.Struct):
    data: list[_ModelOfServer] = []


_listing = msgspec.json.Decoder(_Listing)


@dataclass(frozen=True, slots=True)
class ListedModels:
    """Says what an upstream serves. `names`: None if it does not say."""

    names: tuple[str, ...] | None
    is_sglang: bool = False


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The outcome of a probe: why the upstream is not well, empty if it is. `is_unanswered`: no answer came at all."""

    failure: str
    is_unanswered: bool = False


class Prober:
    """Probes one upstream. Its connection is apart from those of calls, which may all be taken."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._connections = UpstreamConnections(upstream.spec.url, 0)
        self._path = "/health"
        self._room_paths: tuple[str, ...] = ROOM_PATHS if upstream.spec.concurrency is None else ()

    def probe(self) -> ProbeAnswer:
        """Returns how the upstream is. Waits, 4 s at most."""
        try:
            status = self._get(self._path)[0]
            if status in _NOT_THERE and self._path != _LIST:  # it has no such endpoint
                self._path = _LIST
                status = self._get(self._path)[0]
        except CorosrvError as error:
            return ProbeAnswer(str(error), is_unanswered=isinstance(error, UpstreamSilent))
        if is_redirect(status):
            return ProbeAnswer(f"it answered {status} to {self._path}, a redirect, which is not followed")
        return ProbeAnswer("" if status < 400 or status in _NOT_THERE else f"it answered {status} to {self._path}")

    def models(self) -> ListedModels:
        """Returns the names of its models, those that an operator has given it before those that it lists. Waits."""
        spec = self._upstream.spec
        if spec.models and spec.abort is not AbortKind.AUTO:
            return ListedModels(spec.models)
        try:
            status, body = self._get(_LIST)
            models = _listing.decode(body).data if status == 200 else []
        except (CorosrvError, msgspec.DecodeError, UnicodeDecodeError) as error:
            if not spec.models:
                log.warning("upstream %s does not list its models: %.200s", self._upstream.id, error)
            models = []
        is_sglang = any(model.owned_by == _SGLANG for model in models)
        return ListedModels(spec.models or self._names(models), is_sglang)

    def room(self) -> int | None:
        """Returns how many calls the upstream says that it runs at once; None if it does not say. Waits.

        Asks no more once it has answered all questions without telling it.
        """
        for path in self._room_paths:
            try:
                status, body = self._get(path)
            except CorosrvError:
                return None
            n_calls = room_of(body) if status == 200 else None
            if n_calls is not None:
                self._room_paths = (path,)
                return n_calls
            if status not in (200, *_NOT_THERE):
                return None  # it may tell later
        self._room_paths = ()
        return None

    def _names(self, models: list[_ModelOfServer]) -> tuple[str, ...] | None:
        names = dict.fromkeys(model.id for model in models if _is_name(model.id))
        if len(names) > MAX_MODELS:
            log.warning("upstream %s lists %d models; %d are served", self._upstream.id, len(names), MAX_MODELS)
        return tuple(names)[:MAX_MODELS] or None

    def _get(self, path: str) -> tuple[int, bytes]:
        return ask_shortly(self._upstream, self._connections, ForwardRequest(method="GET", path=path, headers=_HEADERS))

    def close(self) -> None:
        self._connections.close()


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isprintable()
