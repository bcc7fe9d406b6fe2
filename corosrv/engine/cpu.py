"""What the processor is and how many of its cores are ours."""

from __future__ import annotations

import os
from pathlib import Path


def physical_cores() -> int:
    """Cores that this process may use, two hardware threads of one core counted once."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return len(allowed)
    return max(len(cores), 1)


def cpu_identity() -> str:
    """Model and instruction sets of the processor: what decides which kernels libllama may run."""
    wanted = ("model name", "flags", "Features", "CPU part")
    lines: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                lines.setdefault(name.strip(), value.strip())
    except OSError:
        return os.uname().machine
    return "; ".join(f"{name}: {value}" for name, value in sorted(lines.items()))
