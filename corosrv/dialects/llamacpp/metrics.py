"""The decode loops' numbers under llama-server's names, for dashboards that were made for it; all models together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corosrv.contracts.jobs.worker import DecodeStats, HasModelStats
from corosrv.web.http.metrics import OfEngines

_PREFIX = "llamacpp:"
_MOST_TOKENS = f"{_PREFIX}n_tokens_max"

Value = Callable[[DecodeStats], float]

# Sums over the models. The counters' names get `_total` in the exposition.
_COUNTERS: dict[str, tuple[str, Value]] = {
    "prompt_tokens": ("Prompt tokens computed", lambda stats: stats.prompt_tokens),
    "prompt_tokens_cached": ("Prompt tokens that were known already", lambda stats: stats.cached_tokens),
    "prompt_seconds": ("Time from a slot to the first token, of ended tasks", lambda stats: stats.prompt_s),
    "tokens_predicted": ("Tokens generated", lambda stats: stats.generated_tokens),
    "tokens_predicted_seconds": ("Time from the first token to the last, of ended tasks", lambda s: s.decode_s),
    "n_decode": ("Steps of the decode loop", lambda stats: stats.steps),
    "spec_decode_num_draft_tokens": ("Tokens guessed ahead", lambda stats: stats.draft_tokens),
    "spec_decode_num_accepted_tokens": ("Guessed tokens that were right", lambda stats: stats.draft_accepted_tokens),
    "spec_decode_num_drafts": ("Guesses", lambda stats: stats.drafts),
}
# Sums that have no name of llama-server's.
_SUMS: dict[str, Value] = {
    "later_tokens": lambda stats: stats.later_tokens,
    "slot_steps": lambda stats: stats.slot_steps,
}
# Quotients of sums.
_RATIOS = {
    "prompt_tokens_seconds": ("Prompt tokens computed in a second of prompt time", "prompt_tokens", "prompt_seconds"),
    "predicted_tokens_seconds": (
        "Tokens generated in a second of a task's time, its first one left out",
        "later_tokens",
        "tokens_predicted_seconds",
    ),
    "n_busy_slots_per_decode": ("Slots in use in a step, on average", "slot_steps", "n_decode"),
}
_VALUES = {name: value for name, (_, value) in _COUNTERS.items()} | _SUMS
_GAUGES: dict[str, tuple[str, Value]] = {
    "requests_processing": ("Tasks with a slot", lambda stats: stats.running),
    "requests_deferred": ("Tasks that wait for a slot", lambda stats: stats.waiting),
}


def with_token_counter(text: bytes) -> bytes:
    """Makes the most tokens a counter in an exposition, as llama-server has it: counters cannot have that name here."""
    gauge, counter = (f"# TYPE {_MOST_TOKENS} {kind}\n".encode() for kind in ("gauge", "counter"))
    return text.replace(gauge, counter)


class LlamaCollector(OfEngines):
    """Reads the decode loops' counters when it is asked, and keeps what it last read of models that are unloaded.

    So a sum over the models never falls, which Prometheus would take for a restart of the server. While no model is
    loaded all names are there, with what earlier loads have left.
    """

    def __init__(self, worker: HasModelStats) -> None:
        self._worker = worker
        self._read: dict[str, dict[str, float]] = {}  # counters by model, as of the last scrape
        self._ended = dict.fromkeys(_VALUES, 0.0)  # of loads that are over
        self._longest = 0
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        stats = self._worker.model_stats()
        loops = list(stats.values())
        with self._lock:
            totals = self._totals(stats)
            self._longest = max([self._longest, *(loop.longest_task for loop in loops)])
        for name, (text, _) in _COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, text, totals[name])
        for name, (text, value) in _GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, text, sum(map(value, loops)))
        yield from _ratios(totals)
        yield GaugeMetricFamily(_MOST_TOKENS, "Most tokens of one task, its prompt included", self._longest)

    def _totals(self, stats: Mapping[str, DecodeStats]) -> dict[str, float]:
        read = {model: {name: value(loop) for name, value in _VALUES.items()} for model, loop in stats.items()}
        for model, before in self._read.items():
            now = read.get(model, {})
            is_over = any(now.get(name, 0) < value for name, value in before.items())  # unloaded, or loaded anew
            for name, value in before.items() if is_over else ():
                self._ended[name] += value
        self._read = read
        return {name: ended + sum(counted[name] for counted in read.values()) for name, ended in self._ended.items()}


def _ratios(totals: Mapping[str, float]) -> Iterable[Metric]:
    for name, (text, above, below) in _RATIOS.items():
        yield GaugeMetricFamily(_PREFIX + name, text, totals[above] / totals[below] if totals[below] else 0.0)
