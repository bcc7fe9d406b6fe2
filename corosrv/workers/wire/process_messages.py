"""Defines the messages that every worker process and its server exchange, whatever the process runs."""

from __future__ import annotations

import msgspec


class _Message(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


class Lanes(_Message, frozen=True, tag="lanes"):
    """Brings the ends of the slots' lanes as descriptors, in the order of the slots; repeated for many slots."""


class Log(_Message, frozen=True, tag="log"):
    """Brings text that was printed outside predictions and calls. `source`: stdout or stderr."""

    source: str
    data: str


class DroppedLogs(_Message, frozen=True, tag="dropped_logs"):
    """Counts the logs that were dropped in this time, because the server did not read."""

    count: int
    interval_millis: int


class SlotFailed(_Message, frozen=True, tag="failed"):
    """Reports that a slot cannot be used any more; with slot -1, before a predictor's Ready: the set-up has failed.

    `is_unloadable`: it has failed because the predictor's code could not be loaded, before its setup() was called.
    """

    slot: int
    error: str
    is_unloadable: bool = False


class Fatal(_Message, frozen=True, tag="fatal"):
    """Reports that the worker is about to end by itself."""

    reason: str


ProcessMessage = Log | DroppedLogs | Fatal  # what the process itself says, and not what it runs
