"""A process that serves an application's workers and their management API, and nothing else: `APP_DIR RUN_DIR`."""

from gevent import monkey

monkey.patch_all()

import logging  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from corosrv.web.management import routes, worker_routes  # noqa: E402
from corosrv.web.management.listener import ManagementListener, ManagementSettings  # noqa: E402
from corosrv.workers.dispatch.dispatcher import Dispatcher  # noqa: E402
from corosrv.workers.manager.manager import Manager, ManagerSettings  # noqa: E402
from corosrv.workers.worker.parent.app_process import AppProcess  # noqa: E402
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig  # noqa: E402


def main(app_dir: str, run_dir: str) -> None:
    logging.basicConfig(level=logging.INFO)
    config = AppWorkerConfig(app_ref="some_app:app", app_dir=app_dir)
    dispatcher = Dispatcher()
    manager = Manager(ManagerSettings(workers=2), lambda *place: AppProcess(config, *place), dispatcher)
    apis = (worker_routes.blueprint(manager, lambda: dispatcher.stats().keys), routes.queue_blueprint([dispatcher]))
    listener = ManagementListener(ManagementSettings(run_dir=run_dir), lambda: manager.state, apis)
    stopping = Event()
    gevent.signal_handler(signal.SIGTERM, stopping.set)
    manager.start()
    listener.start()
    print("listening", flush=True)
    stopping.wait()
    manager.stop()
    while manager.is_ending:
        gevent.sleep(0.01)
    listener.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
