"""Compiles a chat template that was not seen before, and learns from it: the child process of template_verdicts.

Whatever a stranger's template costs, it costs a process that nobody waits for but the server's start. The process ends
with its server, and uses no more time and memory than it may.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from corosrv.base.errors import Refused
from corosrv.formats.callformats.learn_answer import Rendering
from corosrv.models.engine.jinja_template import JinjaTemplate, adapt, reads_parts, unusable
from corosrv.models.engine.sandbox import TemplateLimits
from corosrv.models.engine.traits import Traits, find_traits

_PR_SET_PDEATHSIG = 1


def end_with_server(status: int) -> None:
    """Asks the system to kill this process when its server ends, which does not wait for trials then.

    Exits with this status where the server has ended already. No core file is written from here on.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    output = select.poll()
    output.register(sys.stdout, 0)
    if output.poll(0):  # nobody reads it: the server has ended already
        sys.exit(status)


def limit_further_use(seconds: int, memory_bytes: int) -> None:
    """Limits the processor time and the address space that this process uses beyond what it has by now.

    It dies of SIGXCPU beyond the first, and has no more memory beyond the second.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    _limit(resource.RLIMIT_CPU, used + seconds)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + memory_bytes)


def _limit(kind: int, most: int) -> None:
    """Lowers a limit; one that is lower already stays."""
    soft, hard = resource.getrlimit(kind)
    lowest = min([most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)])
    resource.setrlimit(kind, (lowest, hard))


PROCESSOR_SECONDS = 3  # for all that the child does
LEARNING_SECONDS = 1.5  # of these
MEMORY_BYTES = 512 * 1024 * 1024  # beyond what Python and its modules take
MAX_FINDINGS = 64 * 1024  # bytes
FAULT, OUT_OF_MEMORY = 2, 3  # statuses of the child; Python itself ends with 1 on what nobody caught

T = TypeVar("T")


class TemplateCase(msgspec.Struct, frozen=True):
    """A template, and all else that decides what is learnt from it."""

    source: str
    special: dict[str, str]  # what templates know as bos_token and so on
    end_texts: tuple[str, ...] = ()  # of the tokens that end an answer
    hidden_texts: tuple[str, ...] = ()  # of those that add nothing to its text unless they are asked to
    limits: TemplateLimits = TemplateLimits()


class TemplateFindings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The findings of a trial."""

    refusal: str = ""  # why the template cannot be used
    reads_parts: bool = False  # it wants contents that are lists of parts
    traits: Traits = Traits()


def try_template(case: TemplateCase) -> TemplateFindings:
    """Compiles a template, renders with it and learns from it. Raises Refused for a text that is none."""
    template = _within_memory(lambda: JinjaTemplate(case.source, case.special, case.limits))

    def render(messages: list[dict[str, Any]], **arguments: Any) -> str:
        return _within_memory(lambda: template.render(messages, **arguments))

    takes_parts = reads_parts(render)
    rendering: Rendering = adapt(render, takes_parts)
    traits = find_traits(case.source, rendering, case.end_texts, case.hidden_texts, LEARNING_SECONDS)
    return TemplateFindings(reads_parts=takes_parts, traits=traits)


def _within_memory(step: Callable[[], T]) -> T:
    """Runs a step. Ends this process where its memory does not suffice, which is no refusal of one conversation."""
    try:
        return step()
    except Refused as error:
        if isinstance(error.__cause__, MemoryError):
            os._exit(OUT_OF_MEMORY)
        raise


def main() -> None:
    """Tries the case on standard input, and writes the findings to standard output."""
    end_with_server(FAULT)
    case = msgspec.json.decode(sys.stdin.buffer.read(), type=TemplateCase)
    limit_further_use(PROCESSOR_SECONDS, MEMORY_BYTES)
    try:
        encoded = msgspec.json.encode(try_template(case))
        if len(encoded) > MAX_FINDINGS:
            raise unusable("it writes too much around calls, thoughts or texts")
    except Refused as error:
        encoded = msgspec.json.encode(TemplateFindings(refusal=str(error)))
    except UnicodeEncodeError:
        refusal = unusable("it writes what is no Unicode around calls, thoughts or texts")
        encoded = msgspec.json.encode(TemplateFindings(refusal=str(refusal)))
    sys.stdout.buffer.write(encoded)


if __name__ == "__main__":
    main()
