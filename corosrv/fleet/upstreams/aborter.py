"""Calls an upstream's abort endpoint for a request that is of no use any more.

SGLang takes POST /abort_request with the id of a request, which may be chosen in the request's body. vLLM and corosrv
end what a closed connection asked for, and need no such path. llama-server has none either; it ends streams in this
way, and computes an answer that is no stream to its end, whoever asked for it.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

import gevent
import msgspec
from gevent import Greenlet

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import ForwardRequest
from corosrv.fleet.upstreams.connections import UpstreamConnections
from corosrv.fleet.upstreams.exchange import Addressee, ask_shortly

log = logging.getLogger("corosrv.upstreams")

ABORT_PATH = "/abort_request"
_TAGGED_PATHS = frozenset({"/generate", "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions"})


class AbortKind(str, Enum):
    """The ways to abort a request on an upstream, besides closing its connection."""

    AUTO = "auto"  # as SGLANG if it lists its models as SGLang does, else as NONE
    NONE = "none"
    SGLANG = "sglang"


class _TaggedBody(msgspec.Struct):
    """Holds the members of a body that say whether it asks for one answer, and under which id."""

    rid: Any = msgspec.UNSET
    n: Any = None
    prompt: Any = None
    text: Any = None
    input_ids: Any = None
    sampling_params: Any = None


_tagged_body = msgspec.json.Decoder(_TaggedBody)


def tag(path: str, body: bytes, id: str) -> bytes | None:
    """Returns a body that gives its request an id, by which it can be aborted; None for one that cannot have it.

    That is one with an id of its own, which SGLang takes for the beginning of others' ids as well; one that asks for
    several answers, which get ids of their own; and one for another path than those that generate.
    """
    if path.partition("?")[0] not in _TAGGED_PATHS:
        return None
    try:
        members = _tagged_body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if members.rid is not msgspec.UNSET or not _is_single(members):
        return None
    rest = body.lstrip()[1:]
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return b'{"rid":' + msgspec.json.encode(id) + comma + rest


def _is_single(members: _TaggedBody) -> bool:
    sampling = members.sampling_params
    if (
        isinstance(sampling, list)
        or isinstance(members.text, list)
        or _is_batch(members.prompt)
        or _is_batch(members.input_ids)
    ):
        return False
    return all(n in (None, 1) for n in (members.n, sampling.get("n") if isinstance(sampling, dict) else None))


def _is_batch(prompt: Any) -> bool:
    """Tells whether a prompt is several: a list of anything but tokens."""
    return isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt)


MAX_RUNNING = 256  # abort requests to one upstream at once; beyond that the closed connection has to suffice
_HEADERS = (("Content-Type", "application/json"),)


class Aborter:
    """Sends the abort requests of one upstream, each in a greenlet that ends in 2 s."""

    def __init__(self, id: str, upstream: Addressee, url: str) -> None:
        self.n_sent = 0  # that the upstream has taken
        self.n_failed = 0
        self._id = id
        self._upstream = upstream
        self._connections = UpstreamConnections(url, 0)
        self._running: dict[Greenlet, None] = {}

    def abort(self, request_id: str) -> None:
        """Starts to abort the request with this id. Never waits."""
        if len(self._running) >= MAX_RUNNING:
            self.n_failed += 1
            return
        sending = gevent.spawn(self._send, request_id)
        self._running[sending] = None
        sending.rawlink(self._running.pop)

    def wait(self, timeout: float) -> None:
        """Waits until every request was sent, `timeout` seconds at most."""
        gevent.joinall(list(self._running), timeout=timeout)

    def _send(self, request_id: str) -> None:
        request = ForwardRequest(path=ABORT_PATH, headers=_HEADERS, body=msgspec.json.encode({"rid": request_id}))
        try:
            status, _ = ask_shortly(self._upstream, self._connections, request)
        except CorosrvError as error:
            self._fail(str(error))
            return
        if status < 400:
            self.n_sent += 1
        else:
            self._fail(f"it answered {status}")

    def _fail(self, words: str) -> None:
        self.n_failed += 1
        if self.n_failed == 1:  # the metrics count the others
            log.warning("upstream %s did not take a request to %s: %s", self._id, ABORT_PATH, words)
