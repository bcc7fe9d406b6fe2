"""The decode thread works while another thread holds the interpreter's lock (I7)."""

import ctypes
import select
import struct

from tests.support.engines import SLOW, TIMEOUT, job, opened


def wait_holding_the_lock(fd: int) -> bool:
    """Waits until the descriptor is readable; no other thread can run Python meanwhile. False after a time-out."""
    watched = ctypes.create_string_buffer(struct.pack("ihh", fd, select.POLLIN, 0))
    # PyDLL, unlike CDLL, keeps the lock during the call.
    return ctypes.PyDLL(None).poll(watched, 1, int(TIMEOUT * 1000)) == 1


def test_a_prompt_is_read_and_answered_while_the_lock_is_held_i7():
    # The first token takes 50 ms: the wait has begun by then.
    with opened(model=SLOW) as engine, engine.submit(job()) as reader:
        assert wait_holding_the_lock(reader.fileno())
        assert reader.take_nowait()
