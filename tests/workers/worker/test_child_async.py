"""What takes its time for one async prediction holds up no other: the real child, over real channels."""

from __future__ import annotations

from pathlib import Path

from corosrv.contracts.jobs.setup import FileOutput
from corosrv.workers.wire.messages import Predict
from tests.support.worker_child import TIMEOUT, ChildProcess, write_predictor

PREDICTOR = f"""
import asyncio, threading
from typing import Any
from corosrv.worker import Path

release = threading.Event()

class Slow:
    name = "slow.txt"
    def read(self, size):
        print("reading")
        assert release.wait({TIMEOUT})
        release.clear()
        return b""

async def run(do: str, file: Path = None) -> Any:
    if do == "send":
        return Slow()
    if do == "send in a list":
        return [Slow()]
    if do == "occupy":
        waiting = [asyncio.to_thread(release.wait, {TIMEOUT}) for _ in range(64)]
        print("occupied")
        assert all(await asyncio.gather(*waiting))
    if do == "read":
        release.set()
        return file.read_text()
    release.set()
"""


def test_a_file_that_is_slow_to_copy_holds_nobody_up(tmp_path: Path) -> None:
    path = write_predictor(tmp_path, PREDICTOR)
    with ChildProcess(f"{path}:run", slots=2, directory=tmp_path) as child:
        child.set_up()
        for do, kind in (("send", FileOutput), ("send in a list", object)):
            child.start(do=do)
            child.await_log("reading")

            assert child.predict(slot=1, do="release").chunks == [None]
            assert isinstance(child.hear()[0], kind)


def test_input_files_come_though_user_code_keeps_the_loops_threads_busy(tmp_path: Path) -> None:
    path = write_predictor(tmp_path, PREDICTOR)
    with ChildProcess(f"{path}:run", slots=2) as child:
        child.set_up()
        child.start(do="occupy")
        child.await_log("occupied")

        child.slots[1].send(Predict("p", str(tmp_path), {"do": "read", "file": "data:text/plain,here"}))

        assert child.hear(1).chunks == ["here"]
        assert child.hear(0).chunks == [None]
