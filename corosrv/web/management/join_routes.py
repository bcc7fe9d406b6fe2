"""Lets workers join that others have started: the connection of their request becomes their control channel."""

from __future__ import annotations

import _socket
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import gevent
from flask import Blueprint, Response, request

from corosrv.base.errors import CorosrvError, Refused
from corosrv.base.outgoing import keep_alive
from corosrv.web.management import upgrade
from corosrv.workers.manager.joined import JoinedWorkers, Joining
from corosrv.workers.wire.relay import Relay
from corosrv.workers.worker.parent.app_worker import AppWorker

PROTOCOL = "corosrv-worker/1"
REMOTE_PROTOCOL = "corosrv-lanes/1"  # over TCP, where lanes share one connection
JOIN = "/v1/workers/join"
_MEMBERS = ("app", "app_dir", "factory", "pool")
_LONGEST = 4096  # characters of one of them

# Makes the worker of a connection: what it serves, its place, its incarnation, the connection and its owner's pid.
MakeJoinedWorker = Callable[[Joining, str, int, _socket.socket, int], AppWorker]


def blueprint(joined: JoinedWorkers, make: MakeJoinedWorker) -> Blueprint:
    api = Blueprint("joining", __name__)

    @api.post(JOIN)
    def join() -> Response:
        if upgrade.is_remote():
            return _join_remote(joined, make)
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


def _join_remote(joined: JoinedWorkers, make: MakeJoinedWorker) -> Response:
    """Joins a worker of another machine: its lanes share the connection, and a relay parts them here."""
    upgrade.check_wanted(REMOTE_PROTOCOL)
    host = request.remote_addr or "an unknown address"
    joining = _joining(host)
    pid = int(request.args.get("pid", "0"))
    ours, theirs = _socket.socketpair()
    try:
        worker = joined.add(lambda place, number: make(joining, place, number, ours, pid), host)
    except CorosrvError:
        ours.close()
        theirs.close()
        raise
    begin = functools.partial(_begin, worker, upgrade.duplicate(), theirs)
    return upgrade.switch(REMOTE_PROTOCOL, begin, worker.id)


def _begin(worker: AppWorker, connection: Any, control: _socket.socket) -> None:
    """Starts a worker of another machine, and the relay of its connection. Never waits."""
    with contextlib.suppress(OSError):  # it has left already, which the relay finds
        keep_alive(connection)
    gevent.spawn(_relay, connection, control)
    worker.start()


def _relay(connection: Any, control: _socket.socket) -> None:
    Relay(connection, control, opens_lanes=True).run()


def _joining(host: str = "") -> Joining:
    """Reads what the worker says of itself. Raises Refused, which names the parameter."""
    arguments = request.args
    for name, value in arguments.items(multi=True):
        if name not in (*_MEMBERS, *(("pid",) if host else ())) or len(arguments.getlist(name)) > 1:
            raise Refused(f"the parameter {name[:120]!r} is unknown, or there twice", name[:120])
        if len(value) > _LONGEST:
            raise Refused(f"{name} has more than {_LONGEST} characters", name)
    if not arguments.get("app"):
        raise Refused("app must be the application that the worker serves, as MODULE:NAME", "app")
    if not arguments.get("pid", "0").isdecimal() or len(arguments.get("pid", "")) > 9:
        raise Refused("pid must be the number of the process that joins", "pid")
    if arguments.get("factory", "0") not in ("0", "1"):
        raise Refused("factory must be 0 or 1", "factory")
    return Joining(
        app_ref=arguments["app"],
        app_dir=arguments.get("app_dir", ""),
        is_factory=arguments.get("factory") == "1",
        pool=arguments.get("pool", ""),
        host=host,
    )
