"""`python -m corosrv.images.encoder.check MODEL MMPROJ THREADS [NEED ...]`: tries both and prints a report.

It runs in a process of its own, for a projector file may end it. NEED: what the decode loop does for rows.
The report is JSON, the last line.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # -m puts the working directory first, where a module may be called as one of Python's is

import os

import msgspec

from corosrv.base.errors import LoadError
from corosrv.images.encoder.checking import ProjectorReport
from corosrv.images.encoder.mtmd import ProjectorOptions
from corosrv.images.encoder.opening import GgufHead, open_projector


def check(options: ProjectorOptions) -> ProjectorReport:
    """Opens and tries a projector. Raises LoadError."""
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
    os.environ["GGML_NO_BACKTRACE"] = "1"
    try:
        report = check(ProjectorOptions(model=model, mmproj=mmproj, n_threads=int(n_threads), supports=supports))
    except LoadError as error:
        report = ProjectorReport(error=str(error))
    print(msgspec.json.encode(report).decode(), flush=True)
    os._exit(0)  # as the encoder does


if __name__ == "__main__":
    main(*sys.argv[1:])
