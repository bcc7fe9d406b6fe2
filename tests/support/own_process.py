"""Runs the tests marked `own_process` in a process of their own, one for those of each file.

They look at what belongs to a whole process, such as its descriptors. In the process of the test run, whatever earlier
tests left behind comes and goes meanwhile.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_VARIABLE = "REPORTS_FD"
_reports_fd = os.environ.pop(_VARIABLE, None)  # to which such a process writes its reports
_WAIT_SECONDS = 1000.0  # for one test; a process has the time-outs of its tests, which are shorter


def is_own_process() -> bool:
    """Returns whether no other tests have run here: in a process of marked tests, or in a command that is no test."""
    return _reports_fd is not None or "PYTEST_CURRENT_TEST" not in os.environ


def plugin(config: pytest.Config) -> object:
    """Makes what the test run needs to start such processes, or what one of them needs to report."""
    return Starter() if _reports_fd is None else Reporter(config, int(_reports_fd))


class Reporter:
    """Sends a report of each phase of each test to the process that started this one."""

    def __init__(self, config: pytest.Config, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._config = config
        self._reports = open(fd, "wb")  # noqa: SIM115 - open as long as the process lives

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        pickle.dump(self._config.hook.pytest_report_to_serializable(config=self._config, report=report), self._reports)
        self._reports.flush()


class Starter:
    """Runs the marked tests of a file in a process of their own, and reports what that says of each."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._process: MarkedTests | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not _is_marked(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._process_for(item).reports(item):
            item.ihook.pytest_runtest_logreport(report=report)
        # What the test before left set up for this one, such as its folder, was not used and may not be wanted next.
        item.session._setupstate.teardown_exact(nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Leaves the time-out of a marked test to its process, which knows when it begins."""
        return True if _is_marked(item) else None

    def pytest_sessionfinish(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _process_for(self, item: pytest.Item) -> MarkedTests:
        """Returns the process of a test's file; starts one for it and the marked ones behind it, if there is none."""
        if self._process is None or self._path != item.path or self._process.has_ended:
            if self._process is not None:
                self._process.kill()
            tests = item.session.items[item.session.items.index(item) :]
            self._process = MarkedTests([test for test in tests if test.path == item.path and _is_marked(test)])
            self._path = item.path
        return self._process


class MarkedTests:
    """A process that runs marked tests of one file, one after the other."""

    def __init__(self, items: list[pytest.Item]) -> None:
        readable, writable = os.pipe()
        self.has_ended = False
        self._reports = open(readable, "rb")  # noqa: SIM115 - closed by `kill`
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        # No plugin that is only installed: these tests need none, and their imports take seconds.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {_VARIABLE: str(writable), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "pytest_timeout", *(item.nodeid for item in items)]
        self._process = subprocess.Popen(
            command,
            cwd=items[0].config.rootpath,
            env=environment,
            pass_fds=[writable],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        os.close(writable)

    def reports(self, item: pytest.Item) -> Iterator[pytest.TestReport]:
        """Yields the reports of the next test, which waits for each; one of a failure where the process ends before."""
        phase = None
        while phase != "teardown":
            if (data := self._next_report()) is None:
                yield self._report_lost(item)
                return
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            assert report.nodeid == item.nodeid, f"{report.nodeid} ran instead of {item.nodeid}"
            phase = report.when
            yield report

    def kill(self) -> None:
        """Ends what still runs. May be called twice."""
        self.has_ended = True
        self._process.kill()
        self._process.wait()
        self._reports.close()
        self._output.close()

    def _next_report(self) -> object:
        timer = threading.Timer(_WAIT_SECONDS, self._process.kill)
        timer.start()
        try:
            return pickle.load(self._reports)
        except EOFError:
            return None
        finally:
            timer.cancel()

    def _report_lost(self, item: pytest.Item) -> pytest.TestReport:
        status = self._process.wait(_WAIT_SECONDS)
        self._output.seek(0)
        words = f"the process of this test ended with {status}:\n{self._output.read().decode(errors='replace')}"
        self.kill()
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")


def _is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("own_process") is not None
