"""A predictor that goes wrong as its input says, in four slots."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path as LocalPath
from typing import Any

from corosrv.worker import BasePredictor, Path, concurrent, streaming

GARBAGE = b"\x00\x00\x00\x05hello"


class Predictor(BasePredictor):
    """`do` is what it does; whatever that is, it has put something out before."""

    @streaming
    @concurrent(max=4)
    async def run(self, do: str = "echo", n: int = 3) -> AsyncIterator[Any]:
        print(f"to {do}")
        yield do
        await asyncio.sleep(0)
        if do == "exit":
            os._exit(n)
        elif do == "leave family":
            subprocess.Popen(["sleep", "60"])
            os._exit(n)
        elif do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif do == "hang":
            await asyncio.Event().wait()
        elif do == "fail":
            raise ValueError(do)
        elif do == "garbage":
            os.write(channels()[n % 5], GARBAGE)  # the control channel's, or a slot's
            await asyncio.sleep(0.05)
        elif do == "huge":
            yield "x" * 7_000_000
        elif do == "flood":
            print("y" * 500_000)
            for number in range(200):
                yield {"number": number, "text": "z" * 1000}
        elif do == "file":
            path = LocalPath(os.environ["TMPDIR"]) / f"output-{id(asyncio.current_task())}.txt"
            path.write_text(do)
            yield {"file": Path(path)}
            path.unlink()
        elif do == "missing file":
            yield Path("/nowhere/at/all")
        for number in range(n):
            yield number


def channels() -> list[int]:
    """The descriptors that only the worker itself should write to: its sockets, the control channel first."""
    fds = [int(link.name) for link in LocalPath("/proc/self/fd").iterdir()]
    return sorted(fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode))
