"""Tests the thread that looks what blocks the hub."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from corosrv.web.http.metrics import _stack_of

# Collects at nearly every allocation, and gives Python's lock away within each collection.
LOOKS_WHILE_OTHERS_START = """
import gc, threading, time
from corosrv.web.http.metrics import _stack_of

main = threading.get_ident()
is_over = threading.Event()

def look():
    while not is_over.is_set():
        _stack_of(main)

lookers = [threading.Thread(target=look) for _ in range(2)]
for looker in lookers:
    looker.start()
gc.callbacks.append(lambda phase, info: time.sleep(0.0001))
gc.set_threshold(1)
for _ in range(200):
    other = threading.Thread(target=int)
    other.start()
    other.join()
is_over.set()
for looker in lookers:
    looker.join()
print("over")
"""


def test_threads_that_start_while_others_look_do_not_stop_the_process():
    ended = subprocess.run(
        [sys.executable, "-c", LOOKS_WHILE_OTHERS_START], capture_output=True, text=True, timeout=60, check=True
    )

    assert ended.stdout == "over\n"


def test_a_look_names_what_a_thread_does():
    assert "test_a_look_names_what_a_thread_does" in _stack_of(threading.get_ident())


def test_a_look_leaves_the_collector_as_it_was():
    _stack_of(threading.get_ident())
    is_on = gc.isenabled()
    gc.disable()
    try:
        _stack_of(threading.get_ident())
        is_off = not gc.isenabled()
    finally:
        gc.enable()

    assert is_on
    assert is_off


def test_a_thread_that_does_not_exist_does_nothing():
    assert _stack_of(-1) == ""
