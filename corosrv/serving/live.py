"""Collects the frames of the live picture from the parts of a server.

Frames follow each other: what a decode loop did between two of them, and what a slot does, shows in the difference.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from corosrv.base.processor import garbage_times
from corosrv.contracts.jobs import SlotState
from corosrv.contracts.jobs.worker import DecodeStats, Histogram
from corosrv.serving.part import ServerContext
from corosrv.serving.parts import Parts
from corosrv.web import live

if TYPE_CHECKING:
    from corosrv.fleet.upstreams.upstream import Upstream
    from corosrv.images.vision.encoder import EncoderStats
    from corosrv.models.pool import ModelPool
    from corosrv.serving.kserve import KservePart
    from corosrv.serving.predictor import PredictorPart
    from corosrv.workers.dispatch.stats import KeyStats
    from corosrv.workers.manager.manager import Manager

MOST_LISTED = 100  # of models, queues, pools and upstreams: of queues the fullest, of others the first
SlotWord = Literal["idle", "reading", "decoding", "paused"]
_OUTCOMES = ("stop", "length", "cancelled", "error", "refused")


@dataclass(slots=True)
class LoopRecord:
    """Holds what a decode loop told for one frame, and what its slots did by that."""

    at: float  # of the monotonic clock
    stats: DecodeStats
    slots: Sequence[SlotState] = ()
    states: Sequence[SlotWord] = ()


@dataclass(slots=True)
class LiveRecorder:
    """Makes frames, and knows the one before."""

    context: ServerContext
    parts: Parts
    _loops: dict[str, LoopRecord] = field(default_factory=dict)

    def frame(self, n_watchers: int) -> live.LiveFrame:
        """Makes the frame of this moment. Never waits."""
        parts = self.parts
        frame = live.LiveFrame(time.time(), self.context.state.value, self._hub(), self._http(n_watchers))
        if parts.models is not None:
            frame.models = _models(parts.models.pool)
            frame.engines = self._engines(parts.models.pool)
            if encoders := parts.models.encoder_stats():
                frame.encoders = [_encoder(name, stats) for name, stats in encoders.items()]
        frame.queues = self._queues()
        if parts.app is not None:
            frame.pools = _pools(parts.app.manager, parts.app.dispatcher.stats().keys)
        if parts.upstreams is not None:
            frame.upstreams = [_upstream(upstream) for upstream in parts.upstreams.pool.upstreams[:MOST_LISTED]]
        frame.grpc = None if parts.kserve is None else _grpc(parts.kserve)
        frame.predictor = None if parts.predictor is None else _predictor(parts.predictor)
        return frame

    def _hub(self) -> live.LiveHub:
        totals = garbage_times.totals.values()
        return live.LiveHub(
            lag=self.context.http_stats.take_worst_lag(),
            collections=sum(one.n for one in totals),
            collection_s=sum(one.seconds for one in totals),
            longest_collection=max(one.longest for one in totals),
        )

    def _http(self, n_watchers: int) -> live.LiveHttp:
        stats = self.context.http_stats
        connections, greenlets = self.context.count_clients()
        return live.LiveHttp(stats.n_answers, stats.n_streams - n_watchers, n_watchers, connections, greenlets)

    def _engines(self, pool: ModelPool) -> list[live.LiveEngine]:
        slots = pool.slots_now() if self.context.settings.server.slots_endpoint else {}
        now, before, self._loops = time.monotonic(), self._loops, {}
        engines = []
        for model, stats in list(pool.model_stats().items())[:MOST_LISTED]:
            record = self._loops[model] = LoopRecord(now, stats, slots.get(model, ()))
            engines.append(_engine(model, record, before.get(model)))
        return engines

    def _queues(self) -> list[live.LiveQueue] | None:
        parts, queues = self.parts, list[live.LiveQueue]()
        if parts.app is not None:
            queues += [_queue("handlers", key) for key in parts.app.dispatcher.stats().keys]
        if parts.upstreams is not None:
            queues += [_queue("upstreams", key) for key in parts.upstreams.pool.dispatcher.stats().keys]
        if parts.app is None and parts.upstreams is None:
            return None
        queues.sort(key=lambda queue: -queue.depth - queue.in_flight)
        return queues[:MOST_LISTED]


def _models(pool: ModelPool) -> list[live.LiveModel]:
    return [live.LiveModel(card.id, card.status, card.progress or None) for card in pool.models()[:MOST_LISTED]]


def _engine(model: str, record: LoopRecord, before: LoopRecord | None) -> live.LiveEngine:
    stats = record.stats
    recent = None if before is None else _steps(record, before)
    record.states = _states(record, before)
    return live.LiveEngine(
        model=model,
        n_slots=stats.slots,
        running=stats.running,
        waiting=stats.waiting,
        paused=stats.paused,
        readers=stats.readers,
        polled=stats.readers_polled,
        wakes=stats.eventfd_writes,
        preempted=stats.preempted,
        steps=stats.steps,
        written=stats.generated_tokens,
        ended={outcome: getattr(stats, f"tasks_{outcome}") for outcome in _OUTCOMES},
        cache=live.LiveCache(stats.cache_entries, stats.cache_bytes, stats.cached_tokens, stats.prompt_tokens),
        slots=[_slot(slot, state) for slot, state in zip(record.slots, record.states, strict=True)] or None,
        recent=recent,
    )


def _steps(record: LoopRecord, before: LoopRecord) -> live.LiveSteps:
    now, then = record.stats, before.stats
    written = now.generated_tokens - then.generated_tokens
    n_first = sum(now.ttft.buckets) - sum(then.ttft.buckets)  # tokens that the last row of a prompt gave
    return live.LiveSteps(
        seconds=record.at - before.at,
        steps=now.steps - then.steps,
        step_s=now.step_s - then.step_s,
        reading=now.prompt_tokens - then.prompt_tokens,
        decoding=max(written - n_first, 0),
        written=written,
        cached=now.cached_tokens - then.cached_tokens,
        wakes=now.eventfd_writes - then.eventfd_writes,
        ttft=_mean(now.ttft, then.ttft),
        itl=_mean(now.itl, then.itl),
        queue_wait=_mean(now.queue_wait, then.queue_wait),
    )


def _mean(now: Histogram, before: Histogram) -> float | None:
    n = sum(now.buckets) - sum(before.buckets)
    return (now.sum - before.sum) / n if n else None


def _states(record: LoopRecord, before: LoopRecord | None) -> list[SlotWord]:
    """Names what each slot does. The loop tells how many tasks are paused, and not which: they are those that stood
    still while others had steps, or all where there was no step."""
    known = before is not None and len(before.slots) == len(record.slots)
    had_steps = before is None or record.stats.steps > before.stats.steps
    states: list[SlotWord] = []
    for number, slot in enumerate(record.slots):
        state = _moving(slot)
        if (
            known
            and before is not None
            and slot.is_busy
            and record.stats.paused
            and _is_same(slot, before.slots[number])
        ):
            all_wait = record.stats.paused >= record.stats.running
            state = "paused" if had_steps or all_wait else before.states[number]
        states.append(state)
    return states


def _moving(slot: SlotState) -> SlotWord:
    if not slot.is_busy:
        return "idle"
    return "decoding" if slot.generated_tokens else "reading"


def _is_same(slot: SlotState, before: SlotState) -> bool:
    return (slot.task, slot.computed_tokens, slot.generated_tokens) == (
        before.task,
        before.computed_tokens,
        before.generated_tokens,
    )


def _slot(slot: SlotState, state: SlotWord) -> live.LiveSlot:
    if state == "idle":
        return live.LiveSlot("idle")
    read = slot.cached_tokens + slot.computed_tokens
    return live.LiveSlot(state, slot.task, slot.prompt_tokens, read, slot.cached_tokens, slot.generated_tokens)


def _queue(kind: Literal["handlers", "upstreams"], key: KeyStats) -> live.LiveQueue:
    return live.LiveQueue(
        of=kind,
        key=key.key,
        state=key.state,
        depth=key.depth,
        max_depth=key.max_depth,
        in_flight=key.in_flight,
        permits=key.permits,
        classes={str(priority): n for priority, n in key.classes.items()},
        oldest=key.oldest,
    )


def _pools(manager: Manager, keys: Iterable[KeyStats]) -> list[live.LivePool]:
    depths = {key.key: key.depth for key in keys}
    shown = []
    for pool in manager.pools[:MOST_LISTED]:
        workers = [place.worker for place in pool.shown_places if place.worker is not None]
        groups = [group for worker in workers for group in worker.groups]
        shown.append(
            live.LivePool(
                name=pool.name,
                min=pool.memory.least,
                max=pool.memory.most,
                target=pool.memory.target,
                workers=dict(Counter(place.state.value for place in pool.shown_places)),
                permits=sum(group.permits.total for group in groups),
                in_flight=sum(worker.in_flight for worker in workers),
                depth=sum(depths.get(handler.key, 0) for handler in pool.card.handlers),
                restarts=sum(pool.restarts.values()),
            )
        )
    return shown


def _upstream(upstream: Upstream) -> live.LiveUpstream:
    stats = upstream.stats
    return live.LiveUpstream(
        upstream.id,
        upstream.state.value,
        upstream.in_flight,
        upstream.concurrency,
        stats.ok,
        sum(stats.failed.values()),
    )


def _encoder(model: str, stats: EncoderStats) -> live.LiveEncoder:
    transfers = stats.transfers
    return live.LiveEncoder(
        model=model,
        state="degraded" if stats.is_degraded else "up",
        active=transfers.n_active,
        queued=transfers.n_queued,
        free_blocks=transfers.n_free,
        blocks=transfers.n_free + transfers.n_in_use + transfers.n_quarantined,
        cache_hits=stats.n_cache_hits,
        restarts=stats.n_restarts,
    )


def _grpc(part: KservePart) -> live.LiveGrpc | None:
    if part.grpc is None:
        return None
    stats = part.grpc.stats
    return live.LiveGrpc(part.grpc.state.value, stats.n_streams, sum(stats.ended.values()))


def _predictor(part: PredictorPart) -> live.LivePredictor:
    stats = part.service.stats()
    return live.LivePredictor(
        part.state.value, stats.slots.free, stats.slots.busy, stats.n_running, part.worker.n_restarts
    )
