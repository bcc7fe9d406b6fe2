"""Copies of the worker that user code forks: none of them may go on as a second worker when user code comes back."""

from __future__ import annotations

import os
import sys
import traceback


class Fork:
    """Tells the worker's own process from forked copies of it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def leave(self, error: BaseException | None = None) -> None:
        """Ends this process if it is a forked copy; does nothing in the worker.

        Called wherever user code returns. `error` is how it did: it decides the exit code, as it would in a script.
        """
        if os.getpid() != self._pid:
            os._exit(_exit_code(error))


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    traceback.print_exception(error)
    return 1
