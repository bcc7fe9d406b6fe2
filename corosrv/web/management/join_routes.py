"""Lets workers join that others have started: the connection of their request becomes their control channel."""

from __future__ import annotations

import _socket
from collections.abc import Callable

from flask import Blueprint, Response, request

from corosrv.base.errors import CorosrvError, Refused
from corosrv.web.management import upgrade
from corosrv.workers.manager.joined import JoinedWorkers, Joining
from corosrv.workers.worker.parent.app_worker import AppWorker

PROTOCOL = "corosrv-worker/1"
JOIN = "/v1/workers/join"
_MEMBERS = ("app", "app_dir", "factory", "pool")
_LONGEST = 4096  # characters of one of them

# Makes the worker of a connection: what it serves, its place, its incarnation, the connection and its owner's pid.
MakeJoinedWorker = Callable[[Joining, str, int, _socket.socket, int], AppWorker]


def blueprint(joined: JoinedWorkers, make: MakeJoinedWorker) -> Blueprint:
    api = Blueprint("joining", __name__)

    @api.post(JOIN)
    def join() -> Response:
        peer = upgrade.local_peer()
        upgrade.check_wanted(PROTOCOL)
        joining = _joining()
        connection = upgrade.duplicate()
        try:
            worker = joined.add(lambda place, number: make(joining, place, number, connection, peer.pid))
        except CorosrvError:
            connection.close()
            raise
        return upgrade.switch(PROTOCOL, worker.start, worker.id)

    return api


def _joining() -> Joining:
    """Reads what the worker says of itself. Raises Refused, which names the parameter."""
    arguments = request.args
    for name, value in arguments.items(multi=True):
        if name not in _MEMBERS or len(arguments.getlist(name)) > 1:
            raise Refused(f"the parameter {name[:120]!r} is unknown, or there twice", name[:120])
        if len(value) > _LONGEST:
            raise Refused(f"{name} has more than {_LONGEST} characters", name)
    if not arguments.get("app"):
        raise Refused("app must be the application that the worker serves, as MODULE:NAME", "app")
    if arguments.get("factory", "0") not in ("0", "1"):
        raise Refused("factory must be 0 or 1", "factory")
    return Joining(
        app_ref=arguments["app"],
        app_dir=arguments.get("app_dir", ""),
        is_factory=arguments.get("factory") == "1",
        pool=arguments.get("pool", ""),
    )
