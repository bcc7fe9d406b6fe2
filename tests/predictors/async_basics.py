"""What tests of the worker's child ask an async predictor to do."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from corosrv.worker import BasePredictor, current_scope

gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


class Predictor(BasePredictor):
    """`do` names a method below."""

    async def setup(self) -> None:
        print("set up on the loop")
        self.loop = asyncio.get_running_loop()
        self.pool = ThreadPoolExecutor(1)

    async def run(self, do: str, text: str = "", number: int = 0) -> Any:
        return await getattr(self, do)(text, number)

    async def echo(self, text: str, number: int) -> str:
        return text

    async def echo_late(self, text: str, number: int) -> str:
        for _ in range(number // 20):
            await asyncio.sleep(0)
        return text

    async def fork_returns(self, text: str, number: int) -> int:
        return await _waited_for(os.fork())

    async def fork_exits(self, text: str, number: int) -> int:
        if (pid := os.fork()) == 0:
            sys.exit(number)
        return await _waited_for(pid)

    async def fork_fails(self, text: str, number: int) -> int:
        if (pid := os.fork()) == 0:
            raise ValueError(text)
        return await _waited_for(pid)

    async def fork_awaits(self, text: str, number: int) -> int:
        pid = os.fork()
        await asyncio.sleep(0)
        if pid == 0:
            print("a copy went on")
        return await _waited_for(pid)

    async def loop_is_the_same(self, text: str, number: int) -> bool:
        return asyncio.get_running_loop() is self.loop

    async def context(self, text: str, number: int) -> dict[str, str]:
        await asyncio.sleep(0)
        return current_scope().context

    async def forever(self, text: str, number: int) -> None:
        print("waiting")
        await asyncio.Event().wait()

    async def busy(self, text: str, number: int) -> None:
        while True:
            await asyncio.sleep(0)

    async def swallow(self, text: str, number: int) -> str:
        print("waiting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("swallowed")
        await asyncio.sleep(0)
        return text

    async def says_cancelled(self, text: str, number: int) -> None:
        raise RuntimeError("the operation was cancelled")

    async def cancels_itself(self, text: str, number: int) -> None:
        raise asyncio.CancelledError

    async def cancels_everything(self, text: str, number: int) -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)

    async def leaves(self, text: str, number: int) -> None:
        async def leave() -> None:
            sys.exit(1)

        task = asyncio.ensure_future(leave())
        await asyncio.wait([task])

    async def prints_by_turns(self, text: str, number: int) -> None:
        for at in range(number):
            print(f"{text} {at}")
            await asyncio.sleep(0)

    async def prints_in_tasks(self, text: str, number: int) -> None:
        async def say() -> None:
            await asyncio.sleep(0)
            print(f"task {text}")
            current_scope().record_metric("task", text)

        await asyncio.gather(say(), asyncio.to_thread(print, f"thread {text}"))

    async def prints_in_the_shared_pool(self, text: str, number: int) -> None:
        loop = asyncio.get_running_loop()
        print("began")
        await gate("all began").wait() if number else gate("all began").set()
        await loop.run_in_executor(self.pool, print, f"pool {text}")

    async def leaves_a_task(self, text: str, number: int) -> None:
        async def later() -> None:
            await gate(text).wait()
            print(f"late {text}")
            gate(f"{text} is done").set()

        self.task = asyncio.ensure_future(later())

    async def opens(self, text: str, number: int) -> None:
        gate(text).set()
        await gate(f"{text} is done").wait()

    async def descriptor(self, text: str, number: int) -> None:
        process = await asyncio.create_subprocess_exec("echo", text)
        await process.wait()


class Streaming(BasePredictor):
    async def run(self, number: int = 3, then: str = "end") -> AsyncIterator[int]:
        try:
            for at in range(number):
                yield at
            if then == "wait":
                print("waiting")
                await asyncio.Event().wait()
            if then == "fail":
                raise ValueError("after some")
        except asyncio.CancelledError:
            print("told")
            raise
        finally:
            print("closed")


async def _waited_for(pid: int) -> int:
    """The exit code of a forked copy; 0 in the copy itself."""
    return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]) if pid else 0
