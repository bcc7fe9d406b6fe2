"""Transfers rows from real encoder processes that are killed and stopped, and measures what transferring costs.

    python -m tests.load.transfers --count 200

prints a line for each of five runs: encoders killed with -9 at random, a language process killed with -9, an encoder
that is stopped and does not answer a cancellation, a timer beside 1,000 greenlets that wait for transfers, and the cost
of transfers against that of the prefill of the same rows. It fails if rows differ from the model's, anything is left,
an encoder outlives its parent by a second or is killed too early, or the timer is late by 50 ms of processor time.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gevent
from gevent.pool import Pool

from corosrv.contracts.jobs import Job, Sampling, Text, Tokens
from corosrv.images.transfer.session import TransferResult
from tests.images.transfer.table_transfers import WAIT, TableTransfers
from tests.support import engines, gguf, projector
from tests.support.descriptors import n_descriptors
from tests.support.token_rows import token_rows

TINY_WIDTH, TINY_TOKENS = 32, 256
AT_ONCE = 6  # items that are asked for at a time
LATEST_TIMER = 0.05  # seconds of processor time
LONGEST_ORPHAN = 1.0  # seconds that an encoder may outlive its language process
LARGEST_SHARE = 0.01  # of the processor time of the prefill of the same rows
SMOLLM2_WIDTH = 576


@dataclass(frozen=True)
class Files:
    """Names the files of a tiny model."""

    model: str
    mmproj: str


@contextmanager
def tiny_files() -> Iterator[Files]:
    with tempfile.TemporaryDirectory() as folder:
        model = gguf.write_llama(Path(folder) / "tiny.gguf")
        yield Files(str(model), str(projector.write_mlp(Path(folder) / "mlp.gguf", TINY_WIDTH)))


def tiny_transfers(files: Files, **options: float) -> TableTransfers:
    return TableTransfers(files.model, files.mmproj, TINY_WIDTH, **options)


# Encoders that are killed.


@dataclass(frozen=True)
class KillReport:
    """Says what became of items whose encoders were killed. `n_left`: descriptors that stay open."""

    n_items: int
    n_wrong: int
    n_kills: int
    n_lost: int
    n_texts: int
    n_other_texts: int
    is_idle: bool
    n_left: int
    has_child: bool

    def __str__(self) -> str:
        return (
            f"killed encoders: {self.n_items} items, {self.n_wrong} wrong, {self.n_kills} kills, {self.n_lost} lost "
            f"transfers, {self.n_texts} texts beside them of which {self.n_other_texts} differ"
        )

    def check(self) -> None:
        assert self.n_wrong == self.n_other_texts == self.n_left == 0, self
        assert self.n_texts > 0, self
        assert self.is_idle, self
        assert not self.has_child, self


def kill_encoders(files: Files, n_items: int, n_kills: int, seed: int = 1) -> KillReport:
    """Asks for items while text is generated, and kills encoders at random moments."""
    chance = random.Random(seed)
    items = [[chance.randrange(3, TINY_TOKENS) for _ in range(chance.randint(1, 60))] for _ in range(n_items)]
    with token_rows(files.model) as table:
        expected = [table.data(ids) for ids in items]
    with engines.opened(model=files.model, ctx=256) as engine:
        texts = [text_of(engine)]
        n_before = n_descriptors()
        with tiny_transfers(files) as transfers:
            writer = gevent.spawn(write_texts, engine, texts)
            killer = gevent.spawn(kill_now_and_then, transfers, n_kills, n_items // (n_kills + 1), chance)
            try:
                results = Pool(AT_ONCE).map(transfers.fetch_surely, items)
                await_that(killer.ready)
            finally:
                gevent.killall([killer, writer])
            transfers.fetch_surely(items[0])  # through the encoder after the last
            pid, is_idle, stats = transfers.pid, transfers.is_idle, transfers.stats()
        n_left = n_descriptors() - n_before
    return KillReport(
        n_items,
        sum(rows != right for rows, right in zip(results, expected, strict=True)),
        n_kills,
        stats.finished.get(TransferResult.LOST, 0),
        len(texts) - 1,
        sum(text != texts[0] for text in texts),
        is_idle,
        n_left,
        Path(f"/proc/{pid}").exists(),
    )


def text_of(engine) -> str:
    job = Job((Text("What an encoder does must not be felt here."),), max_tokens=24, sampling=Sampling(temperature=0))
    return "".join(chunk.text for chunk in engines.read_all(engine.submit(job)))


def write_texts(engine, texts: list[str]) -> None:
    while True:
        texts.append(text_of(engine))
        gevent.sleep(0.01)


def kill_now_and_then(transfers: TableTransfers, n_kills: int, n_rounds: int, chance: random.Random) -> None:
    """Kills the encoder each time that so many more rounds, or fewer, were copied."""
    for _ in range(n_kills):
        due = transfers.stats().n_rounds + chance.randint(0, n_rounds)
        await_that(lambda due=due: transfers.stats().n_rounds >= due and transfers.kill())


def await_that(is_so) -> None:
    deadline = time.monotonic() + WAIT
    while not is_so():
        assert time.monotonic() < deadline, f"not within {WAIT:g} s"
        gevent.sleep(0.002)


# A language process that is killed.


def kill_language_process(files: Files) -> float:
    """Returns how many seconds an encoder outlives the process that it belongs to."""
    command = [sys.executable, "-m", "tests.load.transfers", "--language-process", files.model, files.mmproj]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        with child.stdout:
            pidfd = os.pidfd_open(int(child.stdout.readline()))
            try:
                child.kill()
                killed_at = time.monotonic()
                assert select.select([pidfd], [], [], WAIT)[0], "the encoder lives on"
                return time.monotonic() - killed_at
            finally:
                os.close(pidfd)
    finally:
        child.kill()
        child.wait()


def run_language_process(model: str, mmproj: str) -> None:
    """Keeps an encoder busy until it is killed; prints the encoder's pid."""
    with TableTransfers(model, mmproj, TINY_WIDTH) as transfers:
        transfers.fetch_surely(range(3, 100))
        print(transfers.pid, flush=True)
        while True:
            transfers.fetch_surely(range(3, 100))


# An encoder that does not answer.


@dataclass(frozen=True)
class StopReport:
    """Says when an encoder was killed that had been stopped, in seconds after the cancellation."""

    drain_timeout: float
    seconds: float
    n_quarantined: int  # blocks, until then
    n_restarts: int
    is_idle: bool

    def __str__(self) -> str:
        return f"stopped encoder: killed {self.seconds:.2f} s after a cancellation, limit {self.drain_timeout:g} s"

    def check(self) -> None:
        assert self.seconds >= self.drain_timeout, self
        assert self.n_quarantined > 0, self
        assert self.n_restarts == 1, self
        assert self.is_idle, self


def stop_encoder(files: Files, drain_timeout: float) -> StopReport:
    """Stops an encoder that was lent blocks, and cancels."""
    with tiny_transfers(files, drain_timeout=drain_timeout) as transfers:
        pidfd = os.pidfd_open(transfers.pid)
        try:
            transfers.stop_at_the_next_grant()
            waiting = gevent.spawn(transfers.fetch, range(3, 100))
            await_that(lambda: transfers.stats().n_in_use > 0)
            cancelled_at = time.monotonic()
            waiting.kill()
            n_quarantined = transfers.stats().n_quarantined
            await_that(lambda: select.select([pidfd], [], [], 0)[0])
            seconds = time.monotonic() - cancelled_at
        finally:
            os.close(pidfd)
        transfers.fetch_surely(range(3, 100))
        return StopReport(drain_timeout, seconds, n_quarantined, transfers.n_restarts, transfers.is_idle)


# A timer beside many that wait.


def time_a_timer(files: Files, n_waiting: int, n_blocks: int = 64) -> float:
    """Returns the longest processor time, in seconds, that the hub was held while greenlets waited for transfers."""
    with tiny_transfers(files, n_blocks=n_blocks) as transfers:
        waiting = [gevent.spawn(transfers.fetch_surely, range(3, 40)) for _ in range(n_waiting)]
        longest, last = 0.0, time.thread_time()
        while not all(greenlet.ready() for greenlet in waiting):
            gevent.sleep(0.001)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
        gevent.joinall(waiting, timeout=WAIT, raise_error=True)
        return longest


# What it costs.


@dataclass(frozen=True)
class Cost:
    """Holds seconds by the clock, and of this process's processors."""

    clock: float
    processor: float


@dataclass(frozen=True)
class CostReport:
    """Says what it costs to transfer rows, from their first grant to the last copy, and to prefill them."""

    n_blocks: int
    n_rows: int
    n_rounds: int
    transfer: Cost
    prefill: Cost

    @property
    def share(self) -> float:
        """The processor time of a transfer as a part of that of the prefill."""
        return self.transfer.processor / self.prefill.processor

    def __str__(self) -> str:
        return (
            f"{self.n_blocks} blocks: {self.n_rows} rows in {self.n_rounds} rounds, "
            f"{1000 * self.transfer.clock:.2f} ms by the clock, {1000 * self.transfer.processor:.2f} ms of processors, "
            f"{100 * self.share:.2f} % of the {1000 * self.prefill.processor:.0f} ms that their prefill takes"
        )


def measure_costs(n_rows: int, n_runs: int = 5) -> list[CostReport]:
    """Transfers rows of SmolLM2 through pools of several sizes, and prefills as many. Takes the medians."""
    model = engines.packaged_model()
    with engines.opened(model=model, ctx=2 * n_rows) as engine:
        prefill = median([prefill_cost(engine, random_ids(n_rows, run)) for run in range(n_runs)])
    with tempfile.TemporaryDirectory() as folder:
        mmproj = str(projector.write_mlp(Path(folder) / "mlp.gguf", SMOLLM2_WIDTH))
        return [measure_transfers(model, mmproj, n_rows, n_blocks, n_runs, prefill) for n_blocks in (2, 16, 64)]


def random_ids(n: int, seed: int) -> tuple[int, ...]:
    """Returns tokens of SmolLM2; no two seeds have a prefix in common that a cache could keep."""
    chance = random.Random(seed)
    return tuple(chance.randrange(1000, 40000) for _ in range(n))


def prefill_cost(engine, ids: tuple[int, ...]) -> Cost:
    began, used = time.monotonic(), time.process_time()
    engines.read_all(engine.submit(Job((Tokens(ids),), max_tokens=1, sampling=Sampling(temperature=0))))
    return Cost(time.monotonic() - began, time.process_time() - used)


def measure_transfers(model: str, mmproj: str, n_rows: int, n_blocks: int, n_runs: int, prefill: Cost) -> CostReport:
    costs = []
    with TableTransfers(model, mmproj, SMOLLM2_WIDTH, n_blocks=n_blocks, block_rows=16) as transfers:
        for run in range(n_runs):
            before, used = transfer_seconds(transfers), time.process_time()
            transfers.fetch_surely(random_ids(n_rows, run))
            costs.append(Cost(transfer_seconds(transfers) - before, time.process_time() - used))
        n_rounds = transfers.stats().n_rounds // n_runs
    return CostReport(n_blocks, n_rows, n_rounds, median(costs), prefill)


def transfer_seconds(transfers: TableTransfers) -> float:
    phases = transfers.stats().seconds
    return phases["wait_blocks"] + phases["fill"] + phases["copy"]


def median(costs: list[Cost]) -> Cost:
    middle = len(costs) // 2
    return Cost(sorted(c.clock for c in costs)[middle], sorted(c.processor for c in costs)[middle])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="items that are asked for while encoders are killed")
    parser.add_argument("--rows", type=int, default=512, help="rows of which the cost is measured")
    parser.add_argument("--language-process", nargs=2, metavar=("MODEL", "MMPROJ"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.language_process:
        return run_language_process(*arguments.language_process)
    with tiny_files() as files:
        report = kill_encoders(files, arguments.count, arguments.count // 10)
        print(report, flush=True)
        report.check()
        seconds = kill_language_process(files)
        print(f"killed language process: its encoder ends {1000 * seconds:.0f} ms later", flush=True)
        assert seconds < LONGEST_ORPHAN
        stopped = stop_encoder(files, 5.0)
        print(stopped, flush=True)
        stopped.check()
        held = time_a_timer(files, 1000)
        print(f"1,000 waiting greenlets: the hub is held for {1000 * held:.1f} ms at most", flush=True)
        assert held < LATEST_TIMER
    for cost in measure_costs(arguments.rows):
        print(cost, flush=True)
        assert cost.share < LARGEST_SHARE
    return None


if __name__ == "__main__":
    main()
