"""A management API over scripted workers, on a real Unix socket."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import gevent
from click.testing import CliRunner, Result
from flask import Blueprint

from corosrv.cli import main
from corosrv.web.management import routes, worker_routes
from corosrv.web.management.client import ManagementClient
from corosrv.web.management.listener import ManagementListener, ManagementSettings
from corosrv.workers.manager.manager import Manager
from corosrv.workers.objects import ObjectStore
from corosrv.workers.wire.calls import PoolCard
from tests.workers.manager.scripted import Script, managed

T = TypeVar("T")


def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Calls something that blocks, while this thread's hub serves it."""
    with gevent.Timeout(20):
        return gevent.get_hub().threadpool.apply(function, arguments)


@dataclass
class Management:
    """A server with its workers, and a client of its socket."""

    manager: Manager
    script: Script
    listener: ManagementListener
    run_dir: str
    objects: ObjectStore

    def call(self, method: str, target: str, body: Any = None) -> dict[str, Any]:
        return in_thread(ManagementClient(self.listener.path).call, method, target, body)

    def run(self, *words: str) -> Result:
        """Runs a command of the command line."""
        return in_thread(lambda: CliRunner().invoke(main, [*words, "--run-dir", self.run_dir]))


@contextlib.contextmanager
def short_folder() -> Iterator[str]:
    """Makes a folder whose path leaves room for a socket's name."""
    folder = tempfile.mkdtemp(prefix="corosrv-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def apis(manager: Manager, objects: ObjectStore) -> tuple[Blueprint, ...]:
    """Makes all that an application's server lets operators do."""
    return (
        worker_routes.blueprint(manager, lambda: manager.dispatcher.stats().keys),
        routes.object_blueprint(objects),
        routes.queue_blueprint([manager.dispatcher]),
    )


@contextlib.contextmanager
def listening(*cards: PoolCard, run_dir: str = "", **settings: Any) -> Iterator[Management]:
    with contextlib.ExitStack() as stack:
        run_dir = run_dir or stack.enter_context(short_folder())
        manager, script = stack.enter_context(managed(*cards))
        objects = ObjectStore()
        stack.callback(objects.close)
        options = ManagementSettings(run_dir=run_dir, **settings)
        listener = ManagementListener(options, lambda: manager.state, apis(manager, objects))
        listener.start()
        stack.callback(listener.close)
        yield Management(manager, script, listener, run_dir, objects)
