"""Computes figures from the outcomes of requests: percentiles and curves of samples, and figures of a round. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from corosrv.client.bench.plan import LatencyLimits
from corosrv.client.bench.target import RequestOutcome

# The shares of a distribution's curve: even steps, and finer ones for the slowest samples.
CURVE = (*(i / 100 for i in range(100)), 0.995, 0.999, 1.0)


class Quantiles(msgspec.Struct, frozen=True):
    """Percentiles of `n` samples, in seconds."""

    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    n: int


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the value that `share` of the ordered samples do not exceed, interpolated between the two next to it."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def quantiles(samples: Iterable[float]) -> Quantiles | None:
    ordered = sorted(samples)
    if not ordered:
        return None
    p50, p90, p95, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Quantiles(p50, p90, p95, p99, ordered[-1], len(ordered))


def curve(samples: Iterable[float]) -> list[float]:
    """Returns the values at the shares of CURVE; empty without samples."""
    ordered = sorted(samples)
    return [quantile(ordered, share) for share in CURVE] if ordered else []


def median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def over_rounds(rounds: Iterable[Quantiles | None]) -> Quantiles | None:
    """Returns the median round's percentiles, and the worst round's maximum."""
    per_round = [quantiles for quantiles in rounds if quantiles is not None]
    if not per_round:
        return None
    p50, p90, p95, p99 = (
        statistics.median(getattr(each, name) for each in per_round) for name in ("p50", "p90", "p95", "p99")
    )
    return Quantiles(p50, p90, p95, p99, max(each.max for each in per_round), sum(each.n for each in per_round))


BUSY = 0.8  # of a core: from here on the load's own process may be what limits


class ClientCpu(msgspec.Struct, frozen=True):
    """The cost of producing the load: the busiest process's share of a core, all processes' share of the machine, and
    microseconds for each event with text, sending and connecting included."""

    core: float
    machine: float
    us_per_event: float

    @property
    def is_limit(self) -> bool:
        return self.core >= BUSY


class RoundFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One round. Latencies are in seconds; tokens and rates count streams that ended well."""

    seconds: float
    requests: int
    failures: dict[str, int]
    example: str = ""  # of a failure, in the server's or the system's words
    tokens: int
    prompt_tokens: float | None
    tokens_per_s: float
    requests_per_s: float
    stream_tokens_per_s: float | None  # of the median stream, from its first token on
    tokens_per_arrival: float | None
    counted_by: str  # usage, events, or both
    early_stops: int  # streams that stopped before the asked length, with the reason stop
    ttft: Quantiles | None
    itl: Quantiles | None
    total: Quantiles | None
    arriving_ttft: Quantiles | None = None  # of the long prompts, in the mix `arrivals`
    in_limits: int | None = None  # requests that kept the limits of --ttft-limit and --itl-limit
    cpu: ClientCpu

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def goodput(self) -> float | None:
        """Requests a second that kept the limits."""
        return None if self.in_limits is None or not self.seconds else self.in_limits / self.seconds


def figures(
    outcomes: list[RequestOutcome],
    cpu: tuple[float, ...],
    cores: int,
    max_tokens: int,
    limits: LatencyLimits = LatencyLimits(),  # noqa: B008 - it is frozen
) -> RoundFigures:
    """Computes the figures of one round whose requests asked for `max_tokens` tokens."""
    good = [outcome for outcome in outcomes if outcome.failure is None]
    streams = [outcome for outcome in good if not outcome.is_arriving]
    seconds = _span(outcomes)
    tokens = sum(outcome.tokens for outcome in good)
    bad = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    return RoundFigures(
        seconds=seconds,
        requests=len(outcomes),
        failures=dict(Counter(failure.label for failure in bad)),
        example=bad[0].detail if bad else "",
        tokens=tokens,
        prompt_tokens=_mean(outcome.prompt_tokens for outcome in streams),
        tokens_per_s=tokens / seconds if seconds else 0.0,
        requests_per_s=len(good) / seconds if seconds else 0.0,
        stream_tokens_per_s=median(map(_stream_speed, streams)),
        tokens_per_arrival=_tokens_per_arrival(good),
        counted_by=_counted_by(good),
        early_stops=sum(outcome.finish == "stop" and outcome.tokens < max_tokens for outcome in good),
        ttft=quantiles(ttfts(streams)),
        itl=quantiles(gaps(outcomes)),
        total=quantiles(outcome.total for outcome in streams),
        in_limits=sum(outcome.keeps(limits) for outcome in outcomes) if limits else None,
        arriving_ttft=quantiles(ttfts(outcome for outcome in good if outcome.is_arriving)),
        cpu=_cpu(cpu, seconds, cores, sum(outcome.events for outcome in outcomes)),
    )


def ttfts(outcomes: Iterable[RequestOutcome]) -> Iterator[float]:
    return (outcome.ttft for outcome in outcomes if outcome.ttft is not None)


def gaps(outcomes: list[RequestOutcome]) -> Iterator[float]:
    """Yields the seconds between one arrival and the next of streams that ended well.

    Where long prompts arrived, only gaps of the running streams count that ended while a long prompt was read: from the
    moment when the first was due to the first token of the last.
    """
    begin, end = _window([outcome for outcome in outcomes if outcome.is_arriving])
    for outcome in outcomes:
        if outcome.failure is None and not outcome.is_arriving:
            for earlier, later in itertools.pairwise(outcome.arrivals):
                if begin <= later <= end:
                    yield later - earlier


def _window(arriving: list[RequestOutcome]) -> tuple[float, float]:
    if not arriving:
        return float("-inf"), float("inf")
    ends = (outcome.arrivals[0] if outcome.arrivals else outcome.ended for outcome in arriving)
    return min(outcome.began for outcome in arriving), max(ends)


def _span(outcomes: list[RequestOutcome]) -> float:
    """Returns the seconds from the beginning of the first request to the end of the last."""
    if not outcomes:
        return 0.0
    return max(outcome.ended for outcome in outcomes) - min(outcome.began for outcome in outcomes)


def _stream_speed(outcome: RequestOutcome) -> float | None:
    """Returns tokens a second after the first arrival, which is taken to bring as many as the others."""
    n = len(outcome.arrivals)
    if n < 2 or outcome.arrivals[-1] == outcome.arrivals[0]:
        return None
    return outcome.tokens * (n - 1) / n / (outcome.arrivals[-1] - outcome.arrivals[0])


def _tokens_per_arrival(outcomes: list[RequestOutcome]) -> float | None:
    arrivals = sum(len(outcome.arrivals) for outcome in outcomes)
    return sum(outcome.tokens for outcome in outcomes) / arrivals if arrivals else None


def _counted_by(outcomes: list[RequestOutcome]) -> str:
    by_usage = {outcome.is_counted_by_usage for outcome in outcomes}
    return "both" if len(by_usage) == 2 else "events" if by_usage == {False} else "usage"


def _mean(values: Iterable[int | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers else None


def _cpu(cpu: tuple[float, ...], seconds: float, cores: int, events: int) -> ClientCpu:
    if not seconds:
        return ClientCpu(0.0, 0.0, 0.0)
    return ClientCpu(max(cpu) / seconds, sum(cpu) / seconds / cores, 1e6 * sum(cpu) / events if events else 0.0)
