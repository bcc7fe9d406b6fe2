"""Makes the JSON values of the management API from upstreams."""

from __future__ import annotations

from typing import Any

from corosrv.fleet.upstreams.upstream import Upstream


def upstream_view(upstream: Upstream, now: float) -> dict[str, Any]:
    """Shows an upstream: what was said of it, and how it does. `now`: of time.monotonic()."""
    spec, stats = upstream.spec, upstream.stats
    return {
        "id": upstream.id,
        "url": spec.url,
        "state": upstream.state.value,
        "reason": upstream.reason,
        "models": list(upstream.models),
        "concurrency": upstream.concurrency,
        "concurrency_from": upstream.concurrency_from,
        "weight": spec.weight,
        "api_key_env": spec.api_key_env,
        "labels": dict(spec.labels),
        "aborts": upstream.takes_aborts,
        "in_flight": upstream.in_flight,
        "age_ms": round((now - upstream.added_at) * 1000),
        "ok": stats.ok,
        "aborted": stats.aborted,
        "failed": dict(stats.failed),
        "tokens_per_s": round(stats.n_tokens / stats.token_s, 3) if stats.token_s else None,
        "first_byte_ms": round(stats.first_byte_s / stats.n_first_bytes * 1000, 3) if stats.n_first_bytes else None,
    }
