"""Frames that a test writes: an engine with a slot in each state, under a name that would run in a careless page."""

from __future__ import annotations

from typing import Any

HOSTILE = "<img src=x onerror=document.title='hit'>\u202e<script>document.title='hit'</script>"
SLOTS = [
    {"state": "decoding", "task": 7, "prompt": 40, "read": 40, "cached": 10, "written": 12},
    {"state": "reading", "task": 8, "prompt": 900, "read": 300},
    {"state": "paused", "task": 9, "prompt": 4, "read": 4, "written": 80},
    {"state": "idle"},
]


def engine(**members: Any) -> dict[str, Any]:
    recent = {
        "seconds": 0.25, "steps": 10, "step_s": 0.2, "reading": 500, "decoding": 20, "written": 22, "cached": 0,
        "wakes": 9,
    }  # fmt: skip
    plain = {
        "model": HOSTILE, "n_slots": 4, "running": 3, "waiting": 0, "paused": 0, "readers": 3, "polled": 0, "wakes": 99,
        "preempted": 0, "steps": 100, "written": 92, "ended": {"stop": 5}, "slots": SLOTS, "recent": recent,
        "cache": {"entries": 2, "bytes": 3_000_000, "hits": 10, "misses": 90},
    }  # fmt: skip
    return plain | members


def frame(**members: Any) -> dict[str, Any]:
    plain = {
        "state": "ready",
        "hub": {"lag": 0.0012, "collections": 3, "collection_s": 0.01, "longest_collection": 0.005},
        "http": {"answers": 5, "streams": 3, "watchers": 1, "connections": 4, "greenlets": 4},
        "models": [{"id": HOSTILE, "state": "loaded"}],
        "engines": [engine()],
    }
    return plain | members
