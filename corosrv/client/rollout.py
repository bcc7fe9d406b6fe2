"""Asks a server for groups of answers to many prompts, and yields each group when it is there."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from corosrv.base.errors import Misuse
from corosrv.client.groups import RolloutGroup, RolloutReport
from corosrv.client.http import CHAT, HttpConnections, RequestMaker, ServerAddress
from corosrv.client.run import RolloutLimits, RolloutRun

T = TypeVar("T")


def rollout(
    prompts: Iterable[Any],
    n: int = 1,
    *,
    url: str,
    model: str | None = None,
    path: str = CHAT,
    api_key: str | None = None,
    concurrency: int = 64,
    split: bool = False,
    retries: int = 3,
    timeout: float = 600.0,
    grace: float = 10.0,
    headers: Mapping[str, str] | None = None,
    **sampling: Any,
) -> Rollout:
    """Asks for `n` answers to each prompt; nothing is sent before the first group is asked for.

    `prompts`: texts, conversations, lists of token ids (with the `path` of text completions), or mappings of members
    of the body; taken one by one, when there is room. `sampling`: other members of the body, as `max_tokens`,
    `temperature`, `seed` and `logprobs`. `concurrency`: groups at once. `split`: the answers to a prompt are asked for
    one by one, and may come from several workers; otherwise one worker gives them all. `timeout`: seconds for a group,
    with its `retries`; pauses that a busy server asks for are no retries. `grace`: seconds that an abort gives the
    server for partial answers.

    Raises Misuse for arguments that cannot be.
    """
    if isinstance(prompts, (str, bytes, Mapping)):
        raise Misuse("prompts must be an iterable of prompts, not a single one")
    name = f"rollout-{uuid.uuid4().hex}"
    members = sampling if model is None else {"model": model, **sampling}
    maker = RequestMaker(name, n, path, members, is_split=split)
    limits = RolloutLimits(concurrency=concurrency, retries=retries, timeout=timeout, grace=grace)
    every_request = dict(headers or {})
    if api_key is not None:
        every_request["Authorization"] = f"Bearer {api_key}"
    return Rollout(prompts, maker, ServerAddress(url), every_request, limits)


class Rollout:
    """Yields the groups of one rollout as they end, each once; see `rollout`.

    `for` blocks the thread, while another one talks to the server; `async for` runs in the caller's event loop. `with`,
    or `async with`, closes it at the end of the block. After `abort` the iteration goes on with what is left.
    """

    def __init__(
        self,
        prompts: Iterable[Any],
        maker: RequestMaker,
        address: ServerAddress,
        headers: Mapping[str, str],
        limits: RolloutLimits,
    ) -> None:
        self._prompts = prompts
        self._maker = maker
        self._address = address
        self._headers = headers
        self._limits = limits
        self._run: RolloutRun | None = None
        self._thread: _RolloutThread | None = None
        self._is_closed = False
        self._is_in_block = False

    @property
    def report(self) -> RolloutReport:
        """Reports what has become of the prompts so far. Lost ones are listed here, and not yielded."""
        if self._run is None:
            return RolloutReport(0, 0, 0, 0, 0, 0, {}, ())
        return self._run.ledger.report()

    def abort(self, *, partial: bool = False) -> None:
        """Submits no more prompts, and ends what runs. Never waits.

        With `partial` the server is asked for what there is so far, and those groups are still yielded; the others are
        lost. Prompts that were not submitted stay in the iterator that the rollout was given.
        """
        if self._run is None:
            self._is_closed = True
        elif self._thread is not None:
            self._thread.call_soon(lambda run: run.abort(keeps_partial=partial), self._run)
        else:
            self._run.abort(keeps_partial=partial)

    async def _start(self) -> RolloutRun:
        connections = HttpConnections(self._address, self._headers)
        return RolloutRun(self._prompts, self._maker, connections, self._limits)

    # Blocking.

    def __iter__(self) -> Iterator[RolloutGroup]:
        """Yields groups. Waits; raises what iterating over the prompts raises."""
        try:
            while (group := self._take()) is not None:
                yield group
        finally:
            if not self._is_in_block:
                self.close()

    def _take(self) -> RolloutGroup | None:
        if self._run is None:
            if self._is_closed:
                return None
            self._thread = _RolloutThread()
            self._run = self._thread.wait(self._start())
        if self._is_closed:
            return None
        if self._thread is None:
            raise Misuse("this rollout runs in an event loop: use `async for`")
        return self._thread.wait(self._run.take())

    def close(self) -> None:
        """Aborts what still runs, and waits for its end. Twice is harmless."""
        self._is_closed = True
        thread, self._thread = self._thread, None
        if thread is not None and self._run is not None:
            thread.wait(self._run.close())
            thread.stop()

    def __enter__(self) -> Rollout:
        self._is_in_block = True
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # With asyncio.

    async def __aiter__(self) -> AsyncIterator[RolloutGroup]:
        """Yields groups. Waits; raises what iterating over the prompts raises."""
        if self._run is None and not self._is_closed:
            self._run = await self._start()
        if self._thread is not None:
            raise Misuse("this rollout runs in a thread of its own: use `for`")
        try:
            while not self._is_closed and self._run is not None and (group := await self._run.take()) is not None:
                yield group
        finally:
            if not self._is_in_block:
                await self.aclose()

    async def aclose(self) -> None:
        """Aborts what still runs, and waits for its end. Twice is harmless."""
        self._is_closed = True
        if self._run is not None:
            await self._run.close()

    async def __aenter__(self) -> Rollout:
        self._is_in_block = True
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class _RolloutThread:
    """Runs an event loop in a thread, for one that blocks."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="corosrv-rollout", daemon=True)
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns what a coroutine returns, or raises what it raises. Waits."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call_soon(self, function: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """Ends the thread. Waits for it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
