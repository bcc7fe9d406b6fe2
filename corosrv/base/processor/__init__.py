"""The processor's time: who uses how much of it, and how a long computation shares it with other greenlets."""

from corosrv.base.processor.garbage_times import Collection, GarbageTimes, GenerationTotals, garbage_times
from corosrv.base.processor.limit import ProcessorLimit, thread_seconds
from corosrv.base.processor.turns import Turns

__all__ = [
    "Collection",
    "GarbageTimes",
    "GenerationTotals",
    "ProcessorLimit",
    "Turns",
    "garbage_times",
    "thread_seconds",
]
