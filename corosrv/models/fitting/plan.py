"""Plans how many slots of how much context a model gets in the memory that is there, within what settings leave open.

`fit` takes values and returns values; `plan_memory` reads the model's file and hands it what was found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from corosrv.base.errors import ModelFailed
from corosrv.contracts.settings import ModelSettings
from corosrv.models.fitting import gguf
from corosrv.models.fitting.gguf import Facts
from corosrv.models.fitting.room import PAD, CacheTypes, Room

DEFAULT_SLOTS = 32
DEFAULT_CONTEXT = 4096
# Fewer than these are chosen only where even weights and cache alone would not fit otherwise.
_FEW_SLOTS = 4
_SHORT_CONTEXT = 1024

_PROCESS_BYTES = 192 << 20  # of Python, its libraries and the buffers of clients
_FIRST_CONTEXT = 256  # tokens of each slot that the engine begins with, until it has made the whole cache
_SCORED_ROWS = 32
_VECTOR_ROWS = 128
_GIGABYTE = 10**9


@dataclass(frozen=True, slots=True)
class ContextPair:
    """Slots, and the tokens of context of each; 0 where a wish leaves one open."""

    slots: int
    context: int

    def __str__(self) -> str:
        return f"{self.slots} slot{'s' * (self.slots != 1)} of {self.context} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """Holds what decides about the memory of a model."""

    facts: Facts
    draft: Facts | None = None  # of a second model that guesses, with a cache of as many tokens
    types: CacheTypes = field(default_factory=CacheTypes)
    rows: int = 512  # of a step
    shares_context: bool = False  # all slots have one cache
    may_share_context: bool = True  # they could
    may_copy: bool = True  # weights in another order, for faster kernels
    prefix_bytes: int = 0  # of earlier prompts, at most
    more_bytes: int = 0  # of what belongs to the model beside it
    gpu_share: float = 0.0  # of the layers
    picks: bool = False  # the device of the output layer picks the largest logits

    def cache(self, pair: ContextPair) -> int:
        """Returns the bytes of keys, values and states."""
        own = self.facts.cache.bytes(pair.slots, pair.context, self.types, self.shares_context)
        return own + (self.draft.cache.bytes(pair.slots, pair.context, CacheTypes()) if self.draft is not None else 0)

    def computing(self, pair: ContextPair) -> int:
        """Returns the bytes of what a step computes with, rather too many than too few."""
        facts = self.facts
        rows = self.rows if facts.cache.layers else max(self.rows, pair.context)  # else whole texts are read at once
        outputs = min(max(pair.slots + _SCORED_ROWS, _VECTOR_ROWS), rows)
        # In the graph and behind it; where they are picked also padded, kept, and three times as libllama's samplers'.
        logits = (28 if self.picks else 8) * outputs * facts.n_vocab
        cells = pair.context * (pair.slots if self.shares_context else 1)  # that a row sees, or is kept from
        activations = rows * (24 * facts.n_embd + 12 * facts.n_inner + 4 * cells)
        grows = pair.context > _FIRST_CONTEXT
        first = self.facts.cache.bytes(pair.slots, _FIRST_CONTEXT, self.types, self.shares_context) if grows else 0
        return logits + activations + first


@dataclass(frozen=True, slots=True)
class Comfort:
    """Says what a plan keeps room for beside the cache."""

    weights: bool = True
    copies: bool = True
    prefixes: float = 1.0  # part of the prefix cache


# From the best to the least. Without room for their weights, models are read from their files again and again.
_COMFORTS = (Comfort(), Comfort(prefixes=0.25), Comfort(copies=False, prefixes=0.25), Comfort(True, False, 0.0))
_MAPPED = Comfort(False, False, 0.0)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Says what is chosen: slots and context, and what is left for copies."""

    pair: ContextPair
    host_bytes: int  # of all that is kept room for in the machine's memory
    gpu_bytes: int
    cache_bytes: int
    prefix_bytes: int  # that earlier prompts may take
    copy_bytes: int  # that weights in another order may take
    holds_weights: bool  # whether there is room for them, too
    reason: str  # one sentence for the log


def fit(needs: ModelNeeds, wish: ContextPair, host: Room, gpu: Room | None = None) -> MemoryPlan:
    """Chooses what the wish leaves open, as much as fits. Raises ModelFailed for a wish that does not fit."""
    rooms = Rooms(needs, host, gpu)
    best = ContextPair(wish.slots or DEFAULT_SLOTS, wish.context or _default_context(needs))
    for comfort in _COMFORTS:
        for pair in _decent(wish, best):
            if rooms.has(pair, comfort):
                return rooms.plan(pair, best, comfort)
    comforts = [_COMFORTS[-1]] if rooms.has(ContextPair(1, PAD), _COMFORTS[-1]) else [_MAPPED]
    for comfort in comforts:
        for pair in _candidates(wish, best):
            if rooms.has(pair, comfort):
                return rooms.plan(pair, best, comfort)
    raise ModelFailed(rooms.refusal(wish, best, comforts[-1]))


def _default_context(needs: ModelNeeds) -> int:
    return min(DEFAULT_CONTEXT, needs.facts.n_ctx_train or DEFAULT_CONTEXT)


def _candidates(wish: ContextPair, best: ContextPair) -> Iterator[ContextPair]:
    """Yields pairs from the best one down: fewer slots first, then less context, then fewer still."""
    few = best.slots if wish.slots else min(_FEW_SLOTS, best.slots)
    short = best.context if wish.context else min(_SHORT_CONTEXT, best.context)
    for slots in range(best.slots, few, -1):
        yield ContextPair(slots, best.context)
    for context in _contexts(best.context, short):
        yield ContextPair(few, context)
    if not wish.slots:
        for slots in range(few - 1, 0, -1):
            yield ContextPair(slots, short)
    if not wish.context:
        for context in _contexts(short - 1, min(PAD, short)):
            yield ContextPair(1 if not wish.slots else best.slots, context)


def _decent(wish: ContextPair, best: ContextPair) -> Iterator[ContextPair]:
    """Yields the candidates that are worth giving up comfort for only when none of them fits."""
    few = wish.slots or min(_FEW_SLOTS, best.slots)
    short = wish.context or min(_SHORT_CONTEXT, best.context)
    return (pair for pair in _candidates(wish, best) if pair.slots >= few and pair.context >= short)


def _contexts(most: int, least: int) -> Iterator[int]:
    """Yields `most`, then multiples of what a context is rounded to, down to `least`."""
    if most >= least:
        yield most
    yield from range((most - 1) // PAD * PAD, least - 1, -PAD)


@dataclass(frozen=True, slots=True)
class Rooms:
    """The memory of the machine and of its GPUs, for one model."""

    needs: ModelNeeds
    host: Room
    gpu: Room | None

    def has(self, pair: ContextPair, comfort: Comfort) -> bool:
        """Returns whether a pair fits, and what the plan keeps room for beside it."""
        on_gpu = self.gpu is None or self._gpu_bytes(pair) <= self.gpu.free
        return on_gpu and self._host_bytes(pair, comfort) <= self.host.free

    @property
    def _share(self) -> float:
        return 0.0 if self.gpu is None else self.needs.gpu_share

    def _gpu_bytes(self, pair: ContextPair) -> int:
        if not self._share:
            return 0
        needs = self.needs
        return int(self._share * (needs.facts.size + needs.cache(pair))) + 2 * needs.computing(pair)

    def _host_bytes(self, pair: ContextPair, comfort: Comfort) -> int:
        needs, here = self.needs, 1.0 - self._share
        weights = here * needs.facts.size
        kept = weights * comfort.weights + weights * (comfort.copies and needs.may_copy)
        kept += here * needs.cache(pair) + needs.computing(pair) + needs.prefix_bytes * comfort.prefixes
        return int(kept) + needs.more_bytes + _PROCESS_BYTES

    def plan(self, pair: ContextPair, best: ContextPair, comfort: Comfort) -> MemoryPlan:
        needs = self.needs
        taken = self._host_bytes(pair, comfort)
        spare = self.host.free - self._host_bytes(pair, Comfort(comfort.weights, False, comfort.prefixes))
        prefixes = int(needs.prefix_bytes * comfort.prefixes)
        if not prefixes:
            prefixes = min(needs.prefix_bytes, spare // 4)
        return MemoryPlan(
            pair,
            host_bytes=taken,
            gpu_bytes=self._gpu_bytes(pair),
            cache_bytes=needs.cache(pair),
            prefix_bytes=prefixes,
            copy_bytes=max(spare // 2, taken - (self.host.free - spare)) if needs.may_copy else 0,
            holds_weights=comfort.weights,
            reason=self._reason(pair, best, comfort),
        )

    def _reason(self, pair: ContextPair, best: ContextPair, comfort: Comfort) -> str:
        words = f"{pair} take at most {self._words(pair, comfort)}; {_bytes(self.host.free)} are {self.host.source}"
        if self.gpu is not None:
            words += f", {_bytes(self.gpu.free)} {self.gpu.source}"
        if pair != best:
            words += f", where {best} would need {_bytes(self._host_bytes(best, comfort))}"
        if not comfort.weights:
            words += "; the weights do not fit beside them and are read from the file again and again"
        return words

    def _words(self, pair: ContextPair, comfort: Comfort) -> str:
        total = self._host_bytes(pair, comfort) + self._gpu_bytes(pair)
        return f"{_bytes(total)} (weights {_bytes(self.needs.facts.size)}, KV cache {_bytes(self.needs.cache(pair))})"

    def refusal(self, wish: ContextPair, best: ContextPair, comfort: Comfort) -> str:
        """Explains why a wish cannot be kept, which pair would fit, and whether a shared context would."""
        free = f"{_bytes(self.host.free)} of memory are {self.host.source}"
        if self.gpu is not None:
            free += f", {_bytes(self.gpu.free)} {self.gpu.source}"
        words = f"{best} need {self._words(best, comfort)}, and {free}"
        for open_wish in (ContextPair(0, best.context), ContextPair(0, 0)):
            for pair in _candidates(open_wish, best):
                if self.has(pair, comfort):
                    advice = f"{pair} would fit: set COROSRV_SLOTS={pair.slots} and COROSRV_CTX={pair.context}"
                    return f"{words}: {advice}{self._advice_to_share(best, comfort)}"
        return f"{words}: no slots and no context would fit, not even {ContextPair(1, PAD)}"

    def _advice_to_share(self, best: ContextPair, comfort: Comfort) -> str:
        """Advises to share one context between the requested slots, so that one may have what each was to have."""
        needs, least = self.needs, -(-best.context // best.slots)
        if needs.shares_context or not needs.may_share_context or not needs.facts.cache.layers:
            return ""
        rooms = replace(self, needs=replace(needs, shares_context=True))
        for context in _contexts(best.context, least):
            if rooms.has(ContextPair(best.slots, context), comfort):
                return (
                    f"; with --kv-unified (COROSRV_KV_UNIFIED=1) and COROSRV_CTX={context}, {best.slots} slots would "
                    f"share {best.slots * context} tokens, and one may have {best.context} while others are idle"
                )
        return ""


def _bytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= _GIGABYTE else f"{size / 1e6:.0f} MB"


_DETERMINISTIC_TYPE = "bf16"


_MOST_WATCHED = 0.5  # of the layers on GPUs, beside which own kernels compute the others, about


def model_needs(settings: ModelSettings, facts: Facts, gpu_share: float = 0.0) -> ModelNeeds:
    """Returns what decides about the memory of a model; `gpu_share`: of its layers."""
    types = CacheTypes(settings.cache_type_k, settings.cache_type_v)
    return ModelNeeds(
        facts=facts,
        types=CacheTypes(_DETERMINISTIC_TYPE, _DETERMINISTIC_TYPE) if settings.deterministic else types,
        rows=max(settings.batch, settings.slots),
        shares_context=settings.kv_unified,
        may_share_context=not settings.deterministic,
        may_copy=settings.kernels != "ggml" and gpu_share <= _MOST_WATCHED,
        prefix_bytes=settings.cache_bytes,
        more_bytes=bytes_beside(settings),
        draft=_draft_facts(settings),
        gpu_share=gpu_share,
        picks=settings.candidates == "device" or (settings.candidates == "auto" and gpu_share > 0),
    )


def bytes_beside(settings: ModelSettings) -> int:
    """Returns the bytes of a projector's file, which another process holds, and of a draft model with its copies."""
    projector = os.path.getsize(settings.mmproj) if os.path.isfile(settings.mmproj) else 0
    draft = _draft_facts(settings)
    n_copies = 1 if settings.kernels == "ggml" else 2
    return projector + (n_copies * draft.size if draft is not None else 0)


def _draft_facts(settings: ModelSettings) -> Facts | None:
    return gguf.read(settings.model_draft) if settings.model_draft else None


def gpu_share(settings: ModelSettings, facts: Facts) -> float:
    """Returns the share of the layers that go to GPUs where there are some."""
    if settings.device == "none":
        return 0.0
    if not settings.gpu_layers.isdigit():
        return 1.0
    return min(1.0, int(settings.gpu_layers) / (facts.n_layers + 1))


def plan_memory(settings: ModelSettings, facts: Facts, host: Room, gpu: Room | None = None) -> MemoryPlan:
    """Plans the memory of a model of a file. Raises ModelFailed for slots and a context that do not fit."""
    share = gpu_share(settings, facts) if gpu is not None else 0.0
    context = settings.ctx
    if facts.n_ctx_train and not settings.stretches_context:
        context = min(context, facts.n_ctx_train)
    host = host.at_most(settings.memory_bytes, "what the model may take")
    return fit(model_needs(settings, facts, share), ContextPair(settings.slots, context), host, gpu if share else None)


def with_plan(settings: ModelSettings, plan: MemoryPlan) -> ModelSettings:
    return replace(settings, slots=plan.pair.slots, ctx=plan.pair.context, cache_bytes=plan.prefix_bytes)


def with_defaults(settings: ModelSettings) -> ModelSettings:
    """Returns the settings of a model whose file tells nothing about its memory, none of them left open."""
    return replace(settings, slots=settings.slots or DEFAULT_SLOTS, ctx=settings.ctx or DEFAULT_CONTEXT)
