"""What would block: made in a thread or a process, with a hub and without one."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import gevent
import pytest

from corosrv.base import waits
from tests.support.engines import TIMEOUT


def in_thread(function, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result(TIMEOUT)


def run(program: str, timeout: float) -> "subprocess.CompletedProcess[bytes]":
    return waits.run_process([sys.executable, "-c", program], timeout)


def test_others_run_while_a_process_does():
    running = gevent.spawn(run, "print('done')", TIMEOUT)
    gevent.idle()
    assert not running.ready()

    ended = running.get(timeout=TIMEOUT)

    assert (ended.returncode, ended.stdout) == (0, b"done\n")


@pytest.mark.parametrize("call", [lambda *arguments: run(*arguments), lambda *arguments: in_thread(run, *arguments)])
def test_a_process_that_hangs_is_ended(call):
    with pytest.raises(subprocess.TimeoutExpired):
        call("import time; time.sleep(60)", 0.2)


def test_a_call_in_a_thread_gives_its_value_and_its_error():
    gevent.get_hub()

    assert waits.call_in_thread(max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        waits.call_in_thread(divmod, 1, 0)


def test_without_a_hub_a_call_is_made_at_once():
    assert in_thread(lambda: waits.call_in_thread(waits.thread_id) == waits.thread_id())


def test_with_a_hub_a_call_is_made_elsewhere():
    gevent.get_hub()

    assert waits.call_in_thread(waits.thread_id) != waits.thread_id()
