"""Decodes a few tokens in a child process before the engine does, on a libllama and processor not seen before.

A libllama that was compiled badly for this processor dies with SIGILL in its first batch of several tokens (GCC
before 12.4 and 13.3 on processors with AMX does that). A child's death is a finding; the server's would be an outage.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path

from corosrv.engine import libllama
from corosrv.engine.cpu import cpu_identity
from corosrv.errors import ModelFailed
from corosrv.waits import run_process, wait_readable

log = logging.getLogger("corosrv.engine")

TIMEOUT = 120.0  # seconds
N_TRIES = 2  # of a child that ends by its time-out: the machine was busy, or its disk slow
REBUILD = (
    'CXXFLAGS="-fno-strict-aliasing -fno-tree-dse -fno-dse" '
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==VERSION"
)


class Verdict(str, Enum):
    """The way in which libllama may be loaded on this machine."""

    FAST = "fast"  # with repacked weights, as it wants to
    SAFE = "safe"  # without them: slower, and alive


def verdict(model: str) -> Verdict:
    """Returns the stored verdict for this libllama and processor, or a new one. Waits for up to two child processes.

    Raises ModelFailed when the child dies either way.
    """
    remembered = _Memory()
    if (known := remembered.get()) is not None:
        return known
    try:
        verdict = _probe(model)
    except subprocess.TimeoutExpired:
        log.warning(
            "a child process did not decode a few tokens in %g s, %d times; loading without that trial, which is made "
            "at the next start",
            TIMEOUT,
            N_TRIES,
        )
        return Verdict.FAST
    remembered.store(verdict)
    return verdict


def _probe(model: str) -> Verdict:
    death = _try(model, safe=False)
    if death is None:
        return Verdict.FAST
    log.warning(
        "libllama died with %s while it decoded a few tokens in a child process: it was compiled badly for this "
        "processor. Loading without repacked weights, which is slower. To mend it, rebuild: %s",
        death,
        REBUILD,
    )
    if (death := _try(model, safe=True)) is not None:
        raise ModelFailed(
            f"libllama dies with {death} on this processor, even without repacked weights; rebuild it: {REBUILD}"
        )
    return Verdict.SAFE


def _try(model: str, safe: bool) -> str | None:
    """Returns the signal that a child died of, or None. The real load reports what fails in words.

    A child that takes too long is tried again; raises subprocess.TimeoutExpired when all of them do.
    """
    command = [sys.executable, "-m", "corosrv.engine.probe", model, "safe" if safe else "fast"]
    for _ in range(N_TRIES - 1):
        with suppress(subprocess.TimeoutExpired):
            return _signal(run_process(command, TIMEOUT).returncode)
    return _signal(run_process(command, TIMEOUT).returncode)


def _signal(code: int) -> str | None:
    return signal.Signals(-code).name if code < 0 else None


class _Memory:
    """A small JSON file: verdicts by a hash of the library and the processor. Losing it costs one more probe."""

    def __init__(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._file = cache / "corosrv" / "probe.json"
        self._key = self._identity()

    @staticmethod
    def _identity() -> str:
        parts = [cpu_identity()]
        for library in sorted(libllama.folder().glob("lib*.so")):
            stat = library.stat()
            parts.append(f"{library} {stat.st_size} {stat.st_mtime_ns}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _read(self) -> dict[str, str]:
        try:
            read = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return read if isinstance(read, dict) else {}

    def get(self) -> Verdict | None:
        try:
            return Verdict(self._read().get(self._key))
        except ValueError:
            return None

    def store(self, verdict: Verdict) -> None:
        verdicts = self._read() | {self._key: verdict.value}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial = self._file.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(verdicts))
            partial.replace(self._file)
        except OSError as error:
            log.info("the probe's verdict is not remembered: %s", error)


def _child(model: str, safe: bool) -> int:
    """Reads a prompt of several tokens and decodes a few; exit status 0 unless the process dies."""
    from corosrv.engine.binding import NativeEngine, Options, Task, TaskKind
    from corosrv.jobs import Sampling

    options = Options(
        model=model, synthetic=None, context=128, slots=2, queue=8, tasks_of_owner=0, threads=1, step_ms=60.0,
        reader_bytes=65_536, safe_load=safe,
    )  # fmt: skip
    engine = NativeEngine(options)
    wait_readable(engine.fd)
    if engine.state()[0] != "ready":
        return 0
    prompt = engine.tokenize(b"The quick brown fox jumps over the lazy dog. " * 2, True, False)[:64]
    info = engine.info()
    kind = TaskKind.GENERATE if info.generates else TaskKind.RANK if info.pooling == "rank" else TaskKind.EMBED
    reader = engine.submit([Task(prompt, 8, Sampling(temperature=0), kind=kind)] * 2)
    n_finished = 0
    while n_finished < 2:
        wait_readable(reader.fd)
        n_finished += sum(chunk.finish is not None for chunk in reader.take())
    reader.close()
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1], sys.argv[2] == "safe"))
