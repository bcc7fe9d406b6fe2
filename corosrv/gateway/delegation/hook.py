"""Looks at each answer before it is sent: errors of this server may become answers of its peers.

The models that peers announce are listed beside those that are served here, and operators see peers as `peer_view`
shows them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from flask import Response, g, request
from flask.sansio.scaffold import Scaffold

from corosrv.base.errors import CorosrvError
from corosrv.gateway.delegation.announcement import ANTHROPIC, LLAMACPP, OPENAI, UPSTREAM
from corosrv.gateway.delegation.delegator import Delegator
from corosrv.gateway.delegation.roster import PeerRecord, Roster
from corosrv.gateway.delegation.trip import PATH, SERVED_BY, current_trip, path_text, visited_trip
from corosrv.gateway.forwarding import routes
from corosrv.gateway.forwarding.peek import MODELS
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import current
from corosrv.web.http.reply import error_response, json_response, take_error
from corosrv.web.key_account import KeyAccount

log = logging.getLogger("corosrv.delegation")


def peer_view(peer: PeerRecord, now: float) -> dict[str, Any]:
    """Shows a peer: its state, its last answer, and what it announces. `now`: of time.monotonic()."""
    offers = peer.offers
    return {
        "url": peer.url,
        "id": peer.id or None,
        "found": peer.is_found,
        "state": peer.state(now).value,
        "last_answer": peer.last_answer,
        "heard_ms": None if offers is None else round((now - peer.heard_at) * 1000),
        "in_flight": peer.in_flight,
        "formats": [] if offers is None else sorted(offers.formats),
        "models": [] if offers is None else list(offers.models),
        "handlers": [] if offers is None else [_handler_name(name, version) for name, version in offers.models_of_v2()],
        "capabilities": [] if offers is None else list(offers.capabilities()),
    }


def _handler_name(name: str, version: str) -> str:
    return f"{name}:{version}" if version else name


_GENERATING = frozenset({OPENAI, ANTHROPIC, LLAMACPP, UPSTREAM})


def models_of_peers(peers: Iterable[PeerRecord]) -> dict[str, str]:
    """Returns the ids of the replicas that serve models, by the models' names; of several, the first one's."""
    models: dict[str, str] = {}
    for peer in peers:
        if peer.offers is not None and peer.offers.formats & _GENERATING:
            for name in peer.offers.models:
                models.setdefault(name, peer.id)
    return models


def with_peers(local: dict[str, Any] | None, models: dict[str, str], created: int) -> dict[str, Any]:
    """Makes the answer of GET /v1/models; each model of a peer names the `replica` that serves it.

    `local`: the same answer for the models that are served here; None if there are none. `created`: Unix time.
    """
    answer = routes.listing(models, created, local)
    own = {id(model) for model in (local or {}).get("data", ())}
    for model in answer["data"]:
        if id(model) not in own and model["id"] in models:
            model["replica"] = models[model["id"]]
    return answer


class DelegationHook:
    """Looks at the answers of all routes, whatever their protocol, and of paths that have none."""

    def __init__(
        self,
        roster: Roster,
        delegator: Delegator,
        bodies: BodyReader,
        error_body: Callable[[CorosrvError, str], Any],
    ) -> None:
        """`error_body`: makes the body of an error, in the form that a path asks for."""
        self._roster = roster
        self._delegator = delegator
        self._bodies = bodies
        self._error_body = error_body
        self._created = int(time.time())
        bodies.keeps_bodies = True

    def add(self, scaffold: Scaffold) -> None:
        """Adds the hook to an app or a blueprint, whose hooks that were added before see its answers."""
        scaffold.after_request(self._look)

    def _look(self, response: Response) -> Response:
        """Returns the answer that is sent. Waits for that of a peer."""
        incoming = current(request)
        own_error, body = take_error(), self._bodies.take_kept(incoming)
        if incoming.method == "GET" and incoming.path in MODELS:
            response = self._list(response, own_error)
        elif own_error is not None:
            response = self._answer(own_error, body) or response
        if SERVED_BY not in response.headers:
            response.headers[SERVED_BY] = self._roster.own_id
        if current_trip() is not None:
            visited = visited_trip().visit((self._roster.own_id,)).visited
            response.headers[PATH] = path_text(visited)
        return response

    def _answer(self, own_error: CorosrvError, body: bytes | None) -> Response | None:
        try:
            return self._delegator.answer(own_error, body)
        except CorosrvError as error:
            return error_response(error, self._error_body(error, current(request).path))
        except Exception:
            log.exception("a request could not be delegated by a bug")
            return None

    def _list(self, response: Response, own_error: CorosrvError | None) -> Response:
        """Adds the models of peers to the list; none while this server cannot say which it has."""
        if own_error is not None and own_error.status != 404:
            return response
        models = models_of_peers(self._roster.ready(time.monotonic()))
        account: KeyAccount | None = current(g).get("corosrv_account")
        if account is not None:
            models = {name: replica for name, replica in models.items() if account.may_use((name,))}
        if own_error is None and not models:
            return response
        local = msgspec.json.decode(response.get_data()) if own_error is None else None
        return json_response(with_peers(local, models, self._created))
