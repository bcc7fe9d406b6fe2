"""Runs a command of corosrv that the kernel kills when the actor which started it is gone: `FD COMMAND...`.

FD is the reading end of a pipe whose other end only the actor has.
"""

import os
import select
import sys

from corosrv.workers.worker.child.lifeline import hang_on

if __name__ == "__main__":
    lifeline = int(sys.argv[1])
    hang_on(lifeline)
    ended = select.poll()
    ended.register(lifeline, select.POLLHUP)
    if ended.poll(0):  # before hang_on: no signal comes
        sys.exit("corosrv: the actor that started this command is gone")
    os.set_inheritable(lifeline, True)  # the signal comes for as long as the pipe is open here
    os.execv(sys.executable, [sys.executable, "-m", "corosrv", *sys.argv[2:]])
