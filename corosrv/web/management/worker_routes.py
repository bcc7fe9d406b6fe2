"""Shows and changes the workers and pools of an application, and lets workers join that others have started.

The connection of a request to join becomes the control channel of its worker.
"""

from __future__ import annotations

import _socket
import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import gevent
import msgspec
from flask import Blueprint, Response, request

from corosrv.base.errors import CorosrvError, Forbidden, Refused
from corosrv.base.outgoing import keep_alive
from corosrv.web.management import upgrade
from corosrv.web.management.routes import decode_body, pool_view, worker_view
from corosrv.workers.dispatch.stats import KeyStats
from corosrv.workers.manager.joined import JoinedWorkers, Joining
from corosrv.workers.manager.manager import Manager
from corosrv.workers.wire.relay import Relay

if TYPE_CHECKING:
    from corosrv.workers.worker.parent.app_process import AppProcess


class PoolLimits(msgspec.Struct, forbid_unknown_fields=True):
    """Holds the body of PUT /v1/pools/{name}."""

    min: int
    max: int


def blueprint(manager: Manager, find_queues: Callable[[], Iterable[KeyStats]]) -> Blueprint:
    """Makes the routes. `find_queues`: returns what is known of the queues of the application's handlers."""
    api = Blueprint("workers", __name__)
    _add_workers(api, manager)
    _add_pools(api, manager, find_queues)
    return api


def _add_workers(api: Blueprint, manager: Manager) -> None:
    @api.get("/v1/workers")
    def workers() -> dict[str, Any]:
        now = time.monotonic()
        return {"workers": [worker_view(place, now) for place in manager.shown_places]}

    @api.post("/v1/workers")
    def register() -> dict[str, Any]:
        raise Forbidden(
            "a worker registers through its connection, and not by an address: corosrv worker APP --join PATH",
            "registration_not_allowed",
        )

    @api.get("/v1/workers/<path:worker_id>")
    def worker(worker_id: str) -> dict[str, Any]:
        return worker_view(manager.place(worker_id), time.monotonic())

    @api.delete("/v1/workers/<path:worker_id>")
    def remove(worker_id: str) -> dict[str, Any]:
        incarnation = request.args.get("incarnation", "")
        if not incarnation.isascii() or not incarnation.isdecimal() or len(incarnation) > 9:
            raise Refused("incarnation must be the number of the process that is to end: GET shows it", "incarnation")
        manager.remove(worker_id, int(incarnation))
        return {"removed": worker_id}

    @api.post("/v1/workers/<path:worker_id>/drain")
    def drain(worker_id: str) -> tuple[dict[str, Any], int]:
        manager.drain(worker_id)
        return worker_view(manager.place(worker_id), time.monotonic()), 202


def _add_pools(api: Blueprint, manager: Manager, find_queues: Callable[[], Iterable[KeyStats]]) -> None:
    @api.get("/v1/pools")
    def pools() -> dict[str, Any]:
        queues = tuple(find_queues())
        shown = [pool_view(pool, queues) for pool in manager.pools]
        return {"pools": shown, "reason": manager.failure, "has_app": manager.has_app}

    @api.get("/v1/pools/<name>")
    def pool(name: str) -> dict[str, Any]:
        return pool_view(manager.pool(name), find_queues())

    @api.put("/v1/pools/<name>")
    def scale(name: str) -> dict[str, Any]:
        limits = decode_body(PoolLimits)
        manager.scale(name, limits.min, limits.max)
        return pool_view(manager.pool(name), find_queues())


PROTOCOL = "corosrv-worker/1"
REMOTE_PROTOCOL = "corosrv-lanes/1"  # over TCP, where lanes share one connection
JOIN = "/v1/workers/join"
_MEMBERS = ("app", "app_dir", "factory", "pool")
_LONGEST = 4096  # characters of one of them

# Makes the worker of a connection: what it serves, its place, its incarnation, the connection and its owner's pid.
MakeJoinedWorker = Callable[[Joining, str, int, _socket.socket, int], "AppProcess"]


def join_blueprint(joined: JoinedWorkers, make: MakeJoinedWorker) -> Blueprint:
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


def _begin(worker: AppProcess, connection: Any, control: _socket.socket) -> None:
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
