"""Tries libllama and corosrv's own kernels in a child process before the engine does, on what was not seen before.

A libllama that was compiled badly for this processor dies with SIGILL in its first batch of several tokens (GCC
before 12.4 and 13.3 on processors with AMX does that). A child's death is a finding; the server's would be an outage.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corosrv.base.errors import ModelFailed
from corosrv.base.waits import call_in_thread, run_process
from corosrv.contracts.settings import child_environment
from corosrv.models.engine import libllama, verdicts
from corosrv.models.engine.binding import GrammarLimits, Options
from corosrv.models.engine.libllama import cpu_identity
from corosrv.models.engine.verdicts import StoredVerdicts
from corosrv.models.fitting import gguf

log = logging.getLogger("corosrv.engine")

TIMEOUT = 120.0  # seconds, and more for a large file
BYTES_PER_SECOND = 50_000_000  # of a slow disk
BYTES_PER_THREAD = 500_000_000  # of a model file: a small one is read by one thread, which waits for no other
N_TRIES = 2  # of a child that ends by its time-out: the machine was busy, or its disk slow
REBUILD = (
    'CXXFLAGS="-fno-strict-aliasing -fno-tree-dse -fno-dse" '
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==VERSION"
)
# Where ggml aborts, it would have a debugger write down why, for a minute.
_ENVIRONMENT = {"GGML_NO_BACKTRACE": "1"}


class Verdict(str, Enum):
    """The way in which a model may be loaded on this machine."""

    FAST = "fast"  # with own kernels and repacked weights, as the settings want it
    GGML = "ggml"  # without corosrv's own kernels
    SAFE = "safe"  # without repacked weights: slower, and alive


class InconclusiveTrialError(Exception):
    """Tells why no child process came to a finding. A signal within this module: the model loads untried."""


class TrialStatus(IntEnum):
    """The exit status of the child, which is corosrv.models.engine.trial; Python itself ends with 1 on what nobody
    caught.
    """

    HEALTHY = 0
    FAULT = 1  # of its own, such as an extension that does not fit libllama; its last line says which
    DIFFERS = 3
    REFUSED = 4  # libllama cannot load the model; its last line says why


def verdict(options: Options) -> Verdict:
    """Returns the stored verdict for this model, libllama and processor, or a new one. Waits for child processes.

    `options`: those that the engine will open with, if the trial goes well. Raises ModelFailed when the child dies
    however the model is loaded, when libllama refuses it there, and when the child cannot try at all.
    """
    options = replace(options, draft="", draft_context=0)  # which is tried as a model of its own
    if options.synthetic is not None or not os.path.isfile(options.model):
        return Verdict.FAST  # a file that is missing has no dangers, and loading it tells so
    stored = StoredVerdicts("probe.json")
    key = call_in_thread(_key, options)
    if (known := stored.get(key, Verdict)) is not None:
        return known
    log.info("a child process tries %s before it is loaded for the first time", options.model)
    try:
        verdict = _probe(options)
    except InconclusiveTrialError as reason:
        log.warning("%s; loading without that trial, which is made at the next start", reason)
        return Verdict.FAST
    stored.store(key, verdict)
    return verdict


def _probe(options: Options) -> Verdict:
    first = _try(options)
    if first.is_healthy:
        return Verdict.FAST
    if first.difference:
        log.warning(
            "corosrv's own kernels compute something else than libllama's (%s): they are turned off for this model. "
            "Please report this; COROSRV_KERNELS=ggml turns them off without a trial",
            first.difference,
        )
        return Verdict.GGML
    if options.kernels != "ggml" and _try(replace(options, kernels="ggml")).is_healthy:
        log.warning(
            "corosrv's own kernels died with %s while they decoded a few tokens in a child process: they are turned "
            "off for this model. Please report this; COROSRV_KERNELS=ggml turns them off without a trial",
            first.death,
        )
        return Verdict.GGML
    if death := _try(replace(options, safe_load=True)).death:
        raise ModelFailed(
            f"libllama dies with {death} of this model file, even without repacked weights: the file is damaged. "
            f"Where it dies of every file, it was compiled badly for this processor; rebuild it: {REBUILD}"
        )
    log.warning(
        "libllama died with %s while it decoded a few tokens in a child process: it was compiled badly for this "
        "processor. Loading without repacked weights, which is slower. To mend it, rebuild: %s",
        first.death,
        REBUILD,
    )
    return Verdict.SAFE


@dataclass(frozen=True, slots=True)
class _TrialReport:
    """The outcome of a trial: the signal that the child died of, or how own kernels differed; or neither."""

    death: str = ""
    difference: str = ""

    @property
    def is_healthy(self) -> bool:
        return not self.death and not self.difference


def _try(options: Options) -> _TrialReport:
    """Runs a child. One that takes too long is tried again.

    Raises InconclusiveTrialError when all of them do, or where one was killed, and ModelFailed with the child's own
    words when it could not try.
    """
    size = _size(options.model)
    tried = replace(options, threads=min(options.threads, 1 + size // BYTES_PER_THREAD))
    time_limit = TIMEOUT + size / BYTES_PER_SECOND
    for _ in range(N_TRIES):
        with suppress(subprocess.TimeoutExpired):
            command = [sys.executable, "-m", "corosrv.models.engine.trial"]
            environment = child_environment() | _ENVIRONMENT
            return _read_end(run_process(command, time_limit, msgspec.json.encode(tried), environment))
    raise InconclusiveTrialError(f"a child process did not decode a few tokens in {time_limit:g} s, {N_TRIES} times")


def _read_end(child: subprocess.CompletedProcess[bytes]) -> _TrialReport:
    if child.returncode == -signal.SIGKILL:  # which no instruction of a library raises
        raise InconclusiveTrialError("a child process that tries the model was killed, perhaps for want of memory")
    if child.returncode < 0:
        return _TrialReport(death=signal.Signals(-child.returncode).name)
    if child.returncode == TrialStatus.HEALTHY:
        return _TrialReport()
    if child.returncode == TrialStatus.DIFFERS:
        return _TrialReport(difference=_last_line(child.stdout))
    if child.returncode == TrialStatus.REFUSED:
        raise ModelFailed(_last_line(child.stdout))
    words = _last_line(child.stderr) or "it says nothing"
    raise ModelFailed(f"the child process that tries libllama ended with status {child.returncode}: {words}")


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:1000] if lines else ""


def _size(model: str) -> int:
    try:
        return gguf.size(model)
    except OSError:
        return 0


def _key(options: Options) -> str | None:
    """Returns a hash of all that a verdict depends on; None for files that are no GGUF, or cannot be read.

    That is the processor, libllama, the extension, the files, and those options that shape what libllama computes.
    """
    try:
        files = [verdicts.identity(path) for path in (options.model, *options.adapters)]
    except (OSError, gguf.BrokenFile):
        return None
    parts = [cpu_identity(), msgspec.json.encode(_shaping(options)).decode(), *files]
    extensions = Path(__file__).parents[2].glob("_native*.so")
    for path in (*sorted(libllama.folder().glob("lib*.so")), *sorted(extensions)):
        stat = path.stat()
        parts.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _shaping(options: Options) -> Options:
    """Returns the options with one value for each of those that no computation depends on."""
    return replace(
        options,
        model="", adapters=("",) * len(options.adapters), queue=0, tasks_of_owner=0, threads=0, step_ms=0.0,
        draft_p_min=0.0, reader_bytes=0, cache_bytes=0, row_bytes=0, copy_bytes=0, queue_s=0.0, stall_s=0.0,
        grammars=GrammarLimits(),
    )  # fmt: skip
