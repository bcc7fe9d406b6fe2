"""The processor's model, and the cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def physical_cores() -> int:
    """Returns the cores that this process may use; two hardware threads of a core count once."""
    cpus = os.sched_getaffinity(0)
    cores = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return len(cpus)
    return max(len(cores), 1)


def cpu_identity() -> str:
    """Returns the processor's model and instruction sets, which decide which kernels libllama may run."""
    names = ("model name", "flags", "Features", "CPU part")
    lines: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in names:
                lines.setdefault(name.strip(), value.strip())
    except OSError:
        return os.uname().machine
    return "; ".join(f"{name}: {value}" for name, value in sorted(lines.items()))
