"""The process that downloads one model for a server: `python -m corosrv.models.hub NAME`.

It says on its standard output, a JSON object a line, how far it is, and at last where the files are or what went wrong.
Its standard input is a pipe of the server, with whose end it ends.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from contextlib import suppress

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.settings import load_hub
from corosrv.contracts.settings import model_list as hub_name
from corosrv.models.hub.client import Pulled, PullFailed, PullProgress, pull
from corosrv.workers.worker.child.lifeline import hang_on

_PAUSE = 0.25  # seconds between two reports


class _Reporter:
    """Says how far the download is, a few times a second, if there is news: also where no more bytes come."""

    def __init__(self) -> None:
        self._progress = PullProgress()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="corosrv-reports", daemon=True)

    def __enter__(self) -> _Reporter:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def __call__(self, n_bytes: int, total: int) -> None:
        self._progress = PullProgress(n_bytes, total)

    def _run(self) -> None:
        reported = self._progress
        with suppress(BrokenPipeError):  # the server has ended, and this process ends as well
            while not self._is_over.wait(_PAUSE):
                if (progress := self._progress) != reported:
                    _say(progress)
                    reported = progress


def _say(message: Pulled | PullFailed | PullProgress) -> None:
    os.write(1, msgspec.json.encode(message) + b"\n")


def main() -> None:
    """Downloads, and ends with status 0 if the files are there."""
    parser = argparse.ArgumentParser(prog="corosrv.hub")
    parser.add_argument("name")
    parser.add_argument("--no-mmproj", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    hang_on(0)
    try:
        name = hub_name.parse_hub_name(arguments.name)
        hub = load_hub()
        with _Reporter() as report:
            model = pull(name, report, hub, with_projector=not arguments.no_mmproj)
    except CorosrvError as error:
        _say(PullFailed(str(error)))
        sys.exit(1)
    _say(Pulled(model))


if __name__ == "__main__":
    main()
