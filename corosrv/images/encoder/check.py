"""Checks a projector file in another process, which the file may end: `check_projector` starts it, and waits.

The process is `python -m corosrv.images.encoder.check MODEL MMPROJ THREADS [NEED ...]`, and prints a report: JSON, the
last line. NEED: what the decode loop does for rows. `describe_end` says how an encoder process ended, for the log and
for clients of images.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # -m puts the working directory first, where a module may be called as one of Python's is

import os
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from corosrv.base.errors import LoadError
from corosrv.contracts.settings import child_environment
from corosrv.workers.worker.parent.process import Exit

if TYPE_CHECKING:
    from corosrv.images.encoder.mtmd import ProjectorOptions


def describe_end(end: str, fatal: str, has_answered: bool, model: str, mmproj: str) -> str:
    """Returns one sentence.

    `end`: the exit code or signal in words, `fatal`: the reason that the process gave, if it gave one, `has_answered`:
    whether it had opened its files, and said so.
    """
    if fatal:
        return f"the encoder cannot serve: {fatal}"
    if has_answered:
        return f"the encoder process ended by {end} while it served"
    return (
        f"the encoder process ended by {end} while it opened the projector {mmproj} and the model {model}; "
        "libmtmd does not survive a projector file that is damaged or lacks tensors"
    )


_TIMEOUT = 300.0  # seconds


class ProjectorReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describes a projector that was opened and tried; or says why that failed, and nothing else."""

    error: str = ""
    kind: str = ""
    n_embd: int = 0  # numbers of a row, which are the model's
    is_mrope: bool = False
    is_non_causal: bool = False
    n_rows: int = 0  # that a small image became
    seconds: float = 0.0  # that it took


def check_projector(model: str, mmproj: str, n_threads: int, supports: Sequence[str] = ()) -> ProjectorReport:
    """Opens both files in a child process and encodes an image. Waits for it.

    `supports`: what the decode loop does for rows. Raises LoadError where the files do not work together, also when
    the child dies of them.
    """
    command = [sys.executable, "-m", "corosrv.images.encoder.check", model, mmproj, str(n_threads), *supports]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False, env=child_environment())
    except subprocess.TimeoutExpired:
        raise LoadError(f"the projector {mmproj} did not encode a small image within {_TIMEOUT:g} s") from None
    if done.returncode:
        raise LoadError(describe_end(str(Exit(done.returncode)), "", False, model, mmproj))
    report = msgspec.json.decode(done.stdout.splitlines()[-1], type=ProjectorReport)
    if report.error:
        raise LoadError(report.error)
    return report


# What follows runs in the other process.


def _check(options: ProjectorOptions) -> ProjectorReport:
    """Opens and tries a projector. Raises LoadError."""
    from corosrv.images.encoder.opening import GgufHead, open_projector

    with GgufHead(options.mmproj) as head:
        kind = head.projector_kind
    projector, trial = open_projector(options)
    return ProjectorReport(
        kind=kind,
        n_embd=projector.n_embd,
        is_mrope=projector.is_mrope,
        is_non_causal=projector.is_non_causal,
        n_rows=trial.n_rows,
        seconds=trial.seconds,
    )


def main(model: str, mmproj: str, n_threads: str, *supports: str) -> None:
    """Prints the report of a check, as JSON, in a process that a projector file may end."""
    from corosrv.images.encoder.mtmd import ProjectorOptions

    os.environ["GGML_NO_BACKTRACE"] = "1"
    try:
        report = _check(ProjectorOptions(model=model, mmproj=mmproj, n_threads=int(n_threads), supports=supports))
    except LoadError as error:
        report = ProjectorReport(error=str(error))
    print(msgspec.json.encode(report).decode(), flush=True)
    os._exit(0)  # as the encoder does


if __name__ == "__main__":
    main(*sys.argv[1:])
