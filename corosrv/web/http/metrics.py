"""Counters of the HTTP side and of the decode loops.

`HubLag` measures how late the hub is and names what blocks it: one blocking call delays everybody.
"""

from __future__ import annotations

import gc
import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

from gevent import monkey
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.processor import GenerationTotals, garbage_times
from corosrv.base.waits import own_hub
from corosrv.contracts.jobs.worker import BOUNDS, DecodeStats, HasModelStats
from corosrv.contracts.metrics import Bucket, JobExemplars, metric, metrics_of

log = logging.getLogger("corosrv.http")

_INTERVAL = 0.25  # seconds
BLOCKED = 0.1  # seconds that the hub may be late
_QUIET = 60.0  # seconds between two lines of log
_FRAMES = 12  # innermost ones, that such a line shows
# The system's own: what gevent puts in their place would wait in the hub that is to be watched.
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_get_ident = monkey.get_original("_thread", "get_ident")
_start_thread = monkey.get_original("_thread", "start_new_thread")


class HubLag:
    """A timer that measures by how much it is late, and says what the hub did meanwhile where that is long.

    Runs from start() on for as long as it is needed: an idle server stays asleep. Used from the hub's thread.
    """

    def __init__(
        self,
        observe: Callable[[float], None],
        count_blocked: Callable[[], None],
        is_needed: Callable[[], bool] = lambda: True,
    ) -> None:
        """`observe` is told every lag in seconds, `count_blocked` of each that is long. `is_needed`: asked each time;
        a server with one request after the other would start and stop the timer with each."""
        self._observe = observe
        self._is_needed = is_needed
        self._count_blocked = count_blocked
        self._timer: Any = None
        self._due = 0.0
        self._witness: _Witness | None = None
        self._quiet_until = 0.0

    def start(self) -> None:
        if self._timer is not None or (hub := own_hub()) is None:
            return
        if self._witness is None:
            self._witness = _Witness()
        garbage_times.watch()
        self._timer = hub.loop.timer(_INTERVAL, _INTERVAL)
        self._expect()
        self._timer.start(self._on_timer)

    def _expect(self) -> None:
        assert self._witness is not None
        self._witness.seen = ""
        self._due = time.monotonic() + _INTERVAL
        self._witness.watch(self._due + BLOCKED)

    def _on_timer(self) -> None:
        lag = max(0.0, time.monotonic() - self._due)
        self._observe(lag)
        if lag > BLOCKED:
            self._tell(lag)
        if self._is_needed():
            self._expect()
        else:
            self.stop()

    def _tell(self, lag: float) -> None:
        self._count_blocked()
        if time.monotonic() < self._quiet_until:
            return
        self._quiet_until = time.monotonic() + _QUIET
        assert self._witness is not None
        log.warning("the hub was blocked for %.0f ms, in%s", 1000 * lag, self._cause(lag))

    def _cause(self, lag: float) -> str:
        assert self._witness is not None
        longest = garbage_times.longest_since(self._due - _INTERVAL)
        if longest is not None and longest.seconds > lag / 2:
            return f" the garbage collector: generation {longest.generation} took {1000 * longest.seconds:.0f} ms"
        if self._witness.seen:
            return f":\n{self._witness.seen}"
        # The witness could not look before it was over: the whole process was paused, or one call held the GIL.
        return " a pause of the process, or one call into C code that held Python's lock"

    def stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
            assert self._witness is not None
            self._witness.watch(None)


class _Witness:
    """A thread that looks at what the hub's thread does when a moment has come, unless that was put off before.

    It only looks: to log would need locks that belong to the hub.
    """

    def __init__(self) -> None:
        self.seen = ""
        self._ident = _get_ident()
        self._moment: float | None = None
        self._is_needed = _allocate_lock()  # held while it is not
        self._is_needed.acquire()
        _start_thread(self._run, ())

    def watch(self, moment: float | None) -> None:
        """Looks at this moment of the monotonic clock; None: not at all."""
        self._moment = moment
        if moment is not None and self._is_needed.locked():
            self._is_needed.release()

    def _run(self) -> None:
        never = _allocate_lock()
        never.acquire()
        while self._is_needed.acquire():
            while (moment := self._moment) is not None:
                never.acquire(timeout=BLOCKED)  # sleeps, whatever became of time.sleep
                if self._moment == moment and time.monotonic() > moment:
                    self.seen = _stack_of(self._ident)
                    self._moment = None  # once; the next tick sets another


_is_looking = _allocate_lock()


def _stack_of(thread: int) -> str:
    """Describes what a thread does; empty for one that has ended.

    Nothing is collected meanwhile. sys._current_frames() holds a lock of the interpreter that a new thread waits for
    while it holds Python's own. A collection inside it calls Python code, which gives Python's lock away, so that each
    would wait for the other and the process stand still (CPython's gh-106883, in 3.11.7 and others).
    """
    with _is_looking:  # the collector is one for all threads
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            frame = sys._current_frames().get(thread)
        finally:
            if is_collecting:
                gc.enable()
    return "" if frame is None else "".join(traceback.format_stack(frame, limit=_FRAMES))


class HttpStats:
    """Counters of the HTTP side. Used from the hub's thread, or from a server's threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # the counters of this process
        self.engines = CollectorRegistry()  # those of the decode loops, which several processes may share
        self._requests = Counter(
            "corosrv_http_requests", "Answers by route and status", ["route", "status"], registry=self.registry
        )
        self._answers: dict[tuple[str, int], Counter] = {}  # as many as there are routes and statuses
        self._open_streams = Gauge("corosrv_open_streams", "Streams being sent", registry=self.registry)
        lag = Histogram(
            "corosrv_hub_lag_seconds",
            "How late the hub was; looked at four times a second while it has requests",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
            registry=self.registry,
        )
        blocked = Counter(
            "corosrv_hub_blocked", f"Times that it was more than {BLOCKED:g} s late", registry=self.registry
        )
        self._observe_lag = lag.observe
        self._worst_lag = 0.0
        self._lag = HubLag(self._note_lag, blocked.inc, lambda: self._n_busy > 0)
        self.registry.register(GarbageCollector())
        ProcessCollector(registry=self.registry)  # memory, processor time and open files
        self._n_busy = 0
        self.n_answers = 0
        self.n_streams = 0  # being sent

    def _note_lag(self, seconds: float) -> None:
        self._observe_lag(seconds)
        self._worst_lag = max(self._worst_lag, seconds)

    def take_worst_lag(self) -> float:
        """Returns by how much the hub was late at most since this was last called. For one caller."""
        worst, self._worst_lag = self._worst_lag, 0.0
        return worst

    def count_answer(self, route: str, status: int) -> None:
        counter = self._answers.get((route, status))
        if counter is None:
            counter = self._answers[route, status] = self._requests.labels(route, str(status))
        counter.inc()
        self.n_answers += 1

    def begin_work(self) -> None:
        """Counts a piece of work for the hub, whose lag is measured until some time after as many have ended."""
        self._n_busy += 1
        if self._n_busy == 1:
            self._lag.start()

    def end_work(self) -> None:
        self._n_busy -= 1

    def stream_opened(self) -> None:
        self._open_streams.inc()
        self.n_streams += 1
        self.begin_work()

    def stream_closed(self) -> None:
        self._open_streams.dec()
        self.n_streams -= 1
        self.end_work()


_COUNTERS = {
    "prompt_tokens": "Prompt tokens computed",
    "cached_tokens": "Prompt tokens that were known already",
    "generated_tokens": "Tokens generated",
    "draft_tokens": "Guesses of next tokens that were computed",
    "draft_accepted_tokens": "Guesses that came true",
    "draft_model_tokens": "Guesses that the draft model made",
    "draft_model_accepted_tokens": "Guesses of the draft model that came true",
    "steps": "Steps of the decode loop",
    "eventfd_writes": "Wake-ups sent to readers",
    "readers_polled": "Readers without a file descriptor, looked at every 10 ms instead",
    "preempted": "Times that a task lost its slot and went on later",
}
_GAUGES = {
    "threads": "Threads that compute a step, as many of those allowed as are fastest now",
    "slots": "Slots in all",
    "running": "Slots in use",
    "waiting": "Tasks that wait for a slot",
    "paused": "Tasks, with or without a slot, that wait for their reader to be read",
    "readers": "Readers alive",
    "cache_entries": "Prefixes kept for prompts that begin like them",
    "cache_bytes": "Bytes that they take",
}
_HISTOGRAMS = {
    "queue_wait": "From submission to a slot",
    "ttft": "From submission to the first token",
    "itl": "Between two tokens of a task",
}
_GATEWAY_GAUGES: dict[str, tuple[str, Callable[[DecodeStats], float]]] = {
    "num_requests_running": ("Tasks with a slot", lambda stats: stats.running),
    "num_requests_waiting": ("Tasks that wait for a slot", lambda stats: stats.waiting),
    # A slot has its part of the KV cache for as long as it is in use.
    "kv_cache_usage_perc": ("Part of the KV cache that is in use, of 1", lambda stats: stats.running / stats.slots),
}
_GARBAGE_COUNTERS: dict[str, tuple[str, Callable[[GenerationTotals], float]]] = {
    "collections": ("Runs of the collector", lambda totals: totals.n),
    "seconds": ("Time that it took", lambda totals: totals.seconds),
}
_OUTCOMES = ("stop", "length", "cancelled", "error", "refused")


class GarbageCollector(Collector):
    """Reads what Python's garbage collector took. It is asked, and not told: it may run while a counter is locked."""

    def collect(self) -> Iterable[Metric]:
        rows = [([str(generation)], totals) for generation, totals in garbage_times.totals.items()]
        yield from metrics_of(CounterMetricFamily, "corosrv_garbage_", _GARBAGE_COUNTERS, ["generation"], rows)
        longest = ((generation, totals.longest) for generation, totals in rows)
        yield metric(GaugeMetricFamily, "corosrv_garbage_longest_seconds", "Its longest run", ["generation"], longest)


class OfEngines(Collector):
    """Reads what decode loops count: those in a process of their own count for all processes that they serve."""


class EngineCollector(OfEngines):
    """Reads the decode loops' counters when it is asked; keeps none of its own. Every series says which model."""

    def __init__(self, worker: HasModelStats, exemplars: JobExemplars | None = None) -> None:
        """`exemplars`: of the jobs that this process has submitted, where they are traced."""
        self._worker = worker
        self._exemplars = {} if exemplars is None else exemplars

    def collect(self) -> Iterable[Metric]:
        states = (((model, state), 1) for model, state in self._worker.model_states().items())
        words = "1 for the state of the model"
        yield metric(GaugeMetricFamily, "corosrv_model_state", words, ["model", "state"], states)
        if by_model := self._worker.model_stats():
            yield from _of_loops(by_model, self._exemplars)


class GatewayCollector(OfEngines):
    """Reads what the picker of an inference gateway chooses engines by, under the names that vLLM gave it."""

    def __init__(self, worker: HasModelStats, find_adapters: Callable[[], Sequence[str]]) -> None:
        """`find_adapters`: the names of the LoRA adapters that are loaded."""
        self._worker = worker
        self._find_adapters = find_adapters

    def collect(self) -> Iterable[Metric]:
        by_model = self._worker.model_stats()
        things = (([model], stats) for model, stats in by_model.items())
        yield from metrics_of(GaugeMetricFamily, "vllm:", _GATEWAY_GAUGES, ["model_name"], things)
        if names := self._find_adapters():
            labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
            lora = GaugeMetricFamily("vllm:lora_requests_info", "Unix time of this look at the adapters", labels=labels)
            # All are in memory for as long as their model is, so none is ever waited for.
            lora.add_metric([str(len(names)), ",".join(names), ""], int(time.time()))
            yield lora


def _of_loops(by_model: Mapping[str, DecodeStats], exemplars: JobExemplars) -> Iterator[Metric]:
    ended = (
        ([model, outcome], getattr(stats, f"tasks_{outcome}"))
        for model, stats in by_model.items()
        for outcome in _OUTCOMES
    )
    yield metric(CounterMetricFamily, "corosrv_jobs", "Ended tasks by outcome", ["model", "outcome"], ended)
    things = [([model], stats) for model, stats in by_model.items()]
    counters = {name: (text, attrgetter(name)) for name, text in _COUNTERS.items()}
    counters["step_seconds"] = "Time spent in steps", attrgetter("step_s")
    yield from metrics_of(CounterMetricFamily, "corosrv_", counters, ["model"], things)
    gauges = {name: (text, attrgetter(name)) for name, text in _GAUGES.items()}
    yield from metrics_of(GaugeMetricFamily, "corosrv_", gauges, ["model"], things)
    for name, text in _HISTOGRAMS.items():
        family = HistogramMetricFamily(f"corosrv_{name}_seconds", text, labels=["model"])
        for model, stats in by_model.items():
            histogram = getattr(stats, name)
            buckets: Iterable[Bucket] = _cumulative(histogram.buckets)
            if (known := exemplars.get((model, name))) is not None:
                buckets = known.among(_cumulative(histogram.buckets))
            family.add_metric([model], list(buckets), histogram.sum)
        yield family


def _cumulative(counts: Iterable[int]) -> Iterator[tuple[str, int]]:
    for bound, total in zip((*BOUNDS, math.inf), accumulate(counts), strict=True):
        yield ("+Inf" if bound == math.inf else f"{bound:g}"), total
