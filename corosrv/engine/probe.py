"""Tries libllama and corosrv's own kernels in a child process before the engine does, on what was not seen before.

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
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path

from corosrv.engine import libllama
from corosrv.engine.cpu import cpu_identity
from corosrv.errors import ModelFailed
from corosrv.waits import run_process

log = logging.getLogger("corosrv.engine")

TIMEOUT = 120.0  # seconds, and more for a large file
BYTES_PER_SECOND = 50_000_000  # of a slow disk
BYTES_PER_THREAD = 500_000_000  # of a model file: a small one is read by one thread, which waits for no other
N_TRIES = 2  # of a child that ends by its time-out: the machine was busy, or its disk slow
MAX_VERDICTS = 256  # that are remembered
HEAD_BYTES = 65_536  # of a model file, which tell its architecture and shape
REBUILD = (
    'CXXFLAGS="-fno-strict-aliasing -fno-tree-dse -fno-dse" '
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==VERSION"
)


class Verdict(str, Enum):
    """The way in which a model may be loaded on this machine."""

    FAST = "fast"  # with own kernels and repacked weights, as the settings want it
    GGML = "ggml"  # without corosrv's own kernels
    SAFE = "safe"  # without repacked weights: slower, and alive


class InconclusiveTrialError(Exception):
    """Tells why no child process came to a finding. A signal within this module: the model loads untried."""


class TrialStatus(IntEnum):
    """The exit status of the child, which is corosrv.engine.trial; Python itself ends with 1 on what nobody caught."""

    HEALTHY = 0
    FAULT = 1  # of its own, such as an extension that does not fit libllama; its last line says which
    DIFFERS = 3


def verdict(model: str, kernels: str = "auto", n_threads: int = 1) -> Verdict:
    """Returns the stored verdict for this model, libllama and processor, or a new one. Waits for child processes.

    Raises ModelFailed when the child dies however the model is loaded, and when it cannot try at all.
    """
    remembered = _Memory(model, kernels)
    if (known := remembered.get()) is not None:
        return known
    log.info("a child process tries %s before it is loaded for the first time", model)
    try:
        verdict = _probe(model, kernels, n_threads)
    except InconclusiveTrialError as reason:
        log.warning("%s; loading without that trial, which is made at the next start", reason)
        return Verdict.FAST
    remembered.store(verdict)
    return verdict


def _probe(model: str, kernels: str, n_threads: int) -> Verdict:
    first = _try(model, kernels, n_threads)
    if first.is_healthy:
        return Verdict.FAST
    if first.difference:
        log.warning(
            "corosrv's own kernels compute something else than libllama's (%s): they are turned off for this model. "
            "Please report this; COROSRV_KERNELS=ggml turns them off without a trial",
            first.difference,
        )
        return Verdict.GGML
    if kernels != "ggml" and _try(model, "ggml", n_threads).is_healthy:
        log.warning(
            "corosrv's own kernels died with %s while they decoded a few tokens in a child process: they are turned "
            "off for this model. Please report this; COROSRV_KERNELS=ggml turns them off without a trial",
            first.death,
        )
        return Verdict.GGML
    log.warning(
        "libllama died with %s while it decoded a few tokens in a child process: it was compiled badly for this "
        "processor. Loading without repacked weights, which is slower. To mend it, rebuild: %s",
        first.death,
        REBUILD,
    )
    if death := _try(model, kernels, n_threads, is_safe=True).death:
        raise ModelFailed(
            f"libllama dies with {death} on this processor, even without repacked weights; rebuild it: {REBUILD}"
        )
    return Verdict.SAFE


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tells what became of a child: the signal that it died of, or what own kernels computed otherwise; or neither."""

    death: str = ""
    difference: str = ""

    @property
    def is_healthy(self) -> bool:
        return not self.death and not self.difference


def _try(model: str, kernels: str, n_threads: int, is_safe: bool = False) -> _Trial:
    """Runs a child. One that cannot load the model is healthy: the real load reports that in words.

    A child that takes too long is tried again. Raises InconclusiveTrialError when all of them do, or where one was
    killed, and ModelFailed with the child's own words when it could not try.
    """
    size = _size(model)
    n_threads = min(n_threads, 1 + size // BYTES_PER_THREAD)
    arguments = [model, "safe" if is_safe else "fast", kernels, str(n_threads)]
    time_limit = TIMEOUT + size / BYTES_PER_SECOND
    for _ in range(N_TRIES):
        with suppress(subprocess.TimeoutExpired):
            return _read_end(run_process([sys.executable, "-m", "corosrv.engine.trial", *arguments], time_limit))
    raise InconclusiveTrialError(f"a child process did not decode a few tokens in {time_limit:g} s, {N_TRIES} times")


def _read_end(child: subprocess.CompletedProcess[bytes]) -> _Trial:
    if child.returncode == -signal.SIGKILL:  # which no instruction of a library raises
        raise InconclusiveTrialError("a child process that tries the model was killed, perhaps for want of memory")
    if child.returncode < 0:
        return _Trial(death=signal.Signals(-child.returncode).name)
    if child.returncode == TrialStatus.HEALTHY:
        return _Trial()
    if child.returncode == TrialStatus.DIFFERS:
        return _Trial(difference=_last_line(child.stdout))
    words = _last_line(child.stderr) or "it says nothing"
    raise ModelFailed(f"the child process that tries libllama ended with status {child.returncode}: {words}")


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:1000] if lines else ""


def _size(model: str) -> int:
    try:
        return os.stat(model).st_size
    except OSError:
        return 0


class _Memory:
    """A small JSON file: verdicts by a hash of what they depend on. Losing it costs one more probe."""

    def __init__(self, model: str, kernels: str) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._file = cache / "corosrv" / "probe.json"
        self._key = self._identity(model, kernels)

    @staticmethod
    def _identity(model: str, kernels: str) -> str:
        """Returns a hash of the processor, the model file's size and beginning, kernels, libllama and extension.

        So a copy of a model file is not tried again. Raises OSError where the file cannot be read.
        """
        with open(model, "rb") as file:
            head = file.read(HEAD_BYTES)
        parts = [cpu_identity(), kernels, f"{_size(model)} {hashlib.sha256(head).hexdigest()}"]
        extensions = Path(__file__).parents[1].glob("_native*.so")
        for path in (*sorted(libllama.folder().glob("lib*.so")), *sorted(extensions)):
            stat = path.stat()
            parts.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
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
        verdicts = self._read()
        for oldest in [*verdicts][: max(0, len(verdicts) - MAX_VERDICTS + 1)]:
            del verdicts[oldest]
        verdicts[self._key] = verdict.value
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial = self._file.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(verdicts))
            partial.replace(self._file)
        except OSError as error:
            log.info("the probe's verdict is not remembered: %s", error)
