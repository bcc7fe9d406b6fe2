"""Tries a chat template that was not seen before in a child process, and remembers what was found out.

The sandbox counts what a template does, and cannot know all that a step may cost: what it misses ends the child.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec

from corosrv.base import __version__
from corosrv.base.errors import Refused
from corosrv.base.waits import run_process
from corosrv.contracts.settings import child_environment
from corosrv.models.engine.jinja_template import unusable
from corosrv.models.engine.template_trial import (
    MEMORY_BYTES,
    OUT_OF_MEMORY,
    PROCESSOR_SECONDS,
    TemplateCase,
    TemplateFindings,
)
from corosrv.models.engine.verdicts import StoredVerdicts

log = logging.getLogger("corosrv.engine")

TIMEOUT = 60.0  # seconds by the clock: for a machine that is busy elsewhere
N_TRIES = 2  # of a child that ends by its time-out
_PACKAGE = Path(__file__).parents[2]


def template_findings(case: TemplateCase) -> TemplateFindings:
    """Returns what is stored of this template, or what a child process finds out, which this waits for.

    Raises Refused for a template that cannot be used: it is none, its trial dies, or nobody could try it.
    """
    try:
        encoded = msgspec.json.encode(case)
    except UnicodeEncodeError as error:
        raise unusable(f"it is no UTF-8 ({error.reason})") from None
    stored = StoredVerdicts("templates.json")
    key = _key(encoded)
    findings = stored.get(key, TemplateFindings)
    if findings is None:
        log.info("a child process tries a chat template that was not seen before")
        findings = _try(encoded)
        stored.store(key, findings)
    if findings.refusal:
        raise Refused(findings.refusal, None, "invalid_template")
    return findings


def _key(encoded: bytes) -> str:
    """Returns a hash of all that findings depend on: the template, its limits, and the code that looks at it."""
    return hashlib.sha256(_code_identity().encode() + encoded).hexdigest()


def code_files() -> list[Path]:
    """Returns the code that looks at a template."""
    return sorted((*_PACKAGE.glob("formats/callformats/*.py"), *_PACKAGE.glob("models/engine/*.py")))


@cache
def _code_identity() -> str:
    parts = [sys.version, version("jinja2"), __version__]
    for path in code_files():
        stat = path.stat()
        parts.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(parts)


def _try(encoded: bytes) -> TemplateFindings:
    """Runs a child. Raises Refused where it comes to no finding, which is not remembered."""
    for _ in range(N_TRIES):
        with suppress(subprocess.TimeoutExpired):
            command = [sys.executable, "-m", "corosrv.models.engine.template_trial"]
            return _findings(run_process(command, TIMEOUT, encoded, child_environment()))
    raise unusable(f"the child process that tries it did not end in {TIMEOUT:g} s, {N_TRIES} times")


def _findings(child: subprocess.CompletedProcess[bytes]) -> TemplateFindings:
    if child.returncode == 0:
        return msgspec.json.decode(child.stdout, type=TemplateFindings)
    if child.returncode == OUT_OF_MEMORY:
        return _fatal(f"a trial of it takes more than {MEMORY_BYTES >> 20} MiB of memory")
    if child.returncode == -signal.SIGXCPU:
        return _fatal(f"a trial of it takes more than {PROCESSOR_SECONDS} s of processor time")
    if child.returncode == -signal.SIGKILL:  # by the system, as where memory runs out, or by hand
        raise unusable("the child process that tries it was killed")
    if child.returncode < 0:
        return _fatal(f"Python dies of it with {signal.Signals(-child.returncode).name}")
    words = child.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
    raise unusable(f"its trial ended with status {child.returncode}: {words[-1][:1000]}")


def _fatal(reason: str) -> TemplateFindings:
    return TemplateFindings(refusal=str(unusable(reason)))
