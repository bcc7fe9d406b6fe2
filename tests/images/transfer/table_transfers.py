"""Transfers of rows of a model's token table, through a real encoder process that is replaced when it dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import TracebackType

import gevent
from gevent.event import AsyncResult

from corosrv.contracts.jobs import Image
from corosrv.images.transfer.core import TransferCore, TransferOutcome
from corosrv.images.transfer.messages import GrantBlocks, ImagePixels
from corosrv.images.transfer.pool import SharedPool, pool_geometry
from corosrv.images.transfer.session import TransferResult
from corosrv.images.transfer.stats import TransferLimits, TransferStats
from corosrv.images.vision.link import EncoderCommand
from corosrv.images.vision.pump import TransferPump
from corosrv.images.vision.supervisor import EncoderSupervisor
from corosrv.workers.dispatch.estimates import Backoff
from tests.support import token_encoder

WAIT = 120.0  # seconds for what should come soon


class TokenEncoderCommand(EncoderCommand):
    """Starts the encoder whose rows are those of tokens, as the server starts its own."""

    @property
    def words(self) -> list[str]:
        return [token_encoder.MODULE if word == "corosrv.images.encoder" else word for word in super().words]


class TableTransfers:
    """Owns a pool, its core, and the encoder process at hand. To be used in a `with` block."""

    def __init__(
        self, model: str, mmproj: str, n_embd: int, *, n_blocks: int = 8, block_rows: int = 2, **limits: float
    ) -> None:
        self._images: dict[int, Image] = {}  # by rid
        self._waiting: dict[int, AsyncResult] = {}
        geometry = pool_geometry(n_blocks, block_rows, n_embd)
        self._pool = SharedPool(geometry)
        self.core = TransferCore(geometry, TransferLimits(**{"max_queued": 2000, **limits}), self._pool)
        self._pump = TransferPump(self.core, self._images.get, self._look, WAIT)
        command = TokenEncoderCommand(model=model, mmproj=mmproj, n_threads=1)
        self._supervisor = EncoderSupervisor(command, self._pool, self._pump, lambda sha256: None)
        self._supervisor._backoff = Backoff(0.01, 0.05, 60.0)  # tests kill it again and again

    def __enter__(self) -> TableTransfers:
        self._pump.start()
        with gevent.Timeout(WAIT):
            self._supervisor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._supervisor.stop()
        self._pump.stop()
        self._pool.close()

    @property
    def pid(self) -> int:
        """The id of the encoder process; 0 while there is none."""
        return self._supervisor.pid or 0

    @property
    def n_restarts(self) -> int:
        return self._supervisor.n_restarts

    def stats(self) -> TransferStats:
        self._pump.set_time()
        return self.core.stats()

    @property
    def is_idle(self) -> bool:
        stats = self.stats()
        return not (stats.n_in_use or stats.n_quarantined or stats.n_active or stats.n_queued or stats.staging_bytes)

    def fetch(self, ids: Sequence[int]) -> TransferOutcome:
        """Returns how the transfer of these tokens' rows ends. Waits; leaving early cancels it."""
        image = token_encoder.token_image(ids)
        self._pump.set_time()
        rid = self.core.submit(ImagePixels(image.width, image.height))
        self._images[rid], self._waiting[rid] = image, AsyncResult()
        self._pump.wake()
        try:
            return self._waiting[rid].get(timeout=WAIT)
        finally:
            del self._images[rid], self._waiting[rid]
            self._pump.set_time()
            self.core.forget(rid)
            self._pump.wake()

    def fetch_surely(self, ids: Sequence[int]) -> bytes:
        """Returns these tokens' rows, asking again where an encoder was lost. Waits."""
        while (outcome := self.fetch(ids)).result is TransferResult.LOST:
            pass
        assert outcome.rows is not None, outcome.reason
        return bytes(outcome.rows)

    def kill(self) -> bool:
        """Kills the encoder process at hand with SIGKILL; returns whether there was one that serves."""
        if not self.core._ledger.is_up or not self.pid:
            return False
        os.kill(self.pid, signal.SIGKILL)
        return True

    def stop_at_the_next_grant(self) -> None:
        """Has the encoder process stopped (SIGSTOP) when it is next lent blocks, before it hears of them."""
        tick = self.core.tick

        def tick_and_stop() -> None:
            tick()
            if any(isinstance(message, GrantBlocks) for message in self.core.outbox):
                self.core.tick = tick
                os.kill(self.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, self.pid, os.WSTOPPED)

        self.core.tick = tick_and_stop

    def _look(self) -> None:
        for rid, waiting in list(self._waiting.items()):
            if not waiting.ready() and (outcome := self.core.result(rid)) is not None:
                waiting.set(outcome)
