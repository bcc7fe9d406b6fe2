"""Opens the management API of a server: a listener of its own for what its parts let operators do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flask import Blueprint
from gevent import monkey

from corosrv.contracts.jobs import State
from corosrv.contracts.settings import OperatorSettings
from corosrv.web.management import routes
from corosrv.web.management.listener import ManagementListener, ManagementSettings
from corosrv.web.management.routes import HasQueues


class ServerManagement:
    """Owns the listener, where anything can be managed."""

    def __init__(
        self,
        settings: OperatorSettings,
        find_state: Callable[[], State],
        apis: Sequence[Blueprint],
        dispatchers: Sequence[HasQueues],
    ) -> None:
        """`apis`: what the parts let operators do; without any there is no listener. `dispatchers`: whose queues."""
        options = ManagementSettings(
            run_dir=settings.run_dir,
            port=settings.mgmt_port,
            host=settings.mgmt_host,
            token_file=settings.mgmt_token_file,
        )
        all_apis = (*apis, routes.queue_blueprint(dispatchers))
        self.listener = ManagementListener(options, find_state, all_apis) if apis else None

    def start(self) -> None:
        """Opens the sockets. Raises SettingsError. Does nothing where requests have a thread each, and no hub."""
        if self.listener is not None and monkey.is_module_patched("socket"):
            self.listener.start()

    def close(self) -> None:
        """Closes them. Twice is harmless."""
        if self.listener is not None:
            self.listener.close()
