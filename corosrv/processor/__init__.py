"""The processor's time: what a computation may take of it, and what the garbage collector takes."""

from corosrv.processor.garbage_times import Collection, GarbageTimes, GenerationTotals, garbage_times
from corosrv.processor.limit import ProcessorLimit, thread_seconds

__all__ = ["Collection", "GarbageTimes", "GenerationTotals", "ProcessorLimit", "garbage_times", "thread_seconds"]
