"""The messages between server and worker about predictions, and those of every worker process whatever it runs.

They are JSON objects with a `type`. A worker inherits one control channel, and gets one channel for each slot when it
is set up, so large data in one slot delays neither another slot nor a cancel. A slot's channel carries a prediction's
answers to the server (corosrv.contracts.jobs.setup). The terminal one is the last, and is sent when the slot is idle
again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.contracts.jobs.setup import Answer


class _PredictorMessage(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


class Lanes(_PredictorMessage, frozen=True, tag="lanes"):
    """Brings the ends of the slots' lanes as descriptors, in the order of the slots; repeated for many slots."""


class Log(_PredictorMessage, frozen=True, tag="log"):
    """Brings text that was printed outside predictions and calls. `source`: stdout or stderr."""

    source: str
    data: str


class DroppedLogs(_PredictorMessage, frozen=True, tag="dropped_logs"):
    """Counts the logs that were dropped in this time, because the server did not read."""

    count: int
    interval_millis: int


class SlotFailed(_PredictorMessage, frozen=True, tag="failed"):
    """Reports that a slot cannot be used any more; with slot -1, before a predictor's Ready: the set-up has failed.

    `is_unloadable`: it has failed because the predictor's code could not be loaded, before its setup() was called.
    """

    slot: int
    error: str
    is_unloadable: bool = False


class Fatal(_PredictorMessage, frozen=True, tag="fatal"):
    """Reports that the worker is about to end by itself."""

    reason: str


ProcessMessage = Log | DroppedLogs | Fatal  # what the process itself says, and not what it runs


PROTOCOL = 2  # of these messages; a worker that speaks another one is refused
MAX_FRAME = 8 << 20  # bytes of one message
MAX_VALUE = 6 << 20  # bytes of an input or output as JSON; a larger one is written to a file and named


# Control channel, to the worker.


class Init(_PredictorMessage, frozen=True, tag="init"):
    """Comes first and names the predictor to load. `num_slots`: None if the predictor itself sets the number."""

    predictor_ref: str
    num_slots: int | None = None
    protocol: int = PROTOCOL


class Cancel(_PredictorMessage, frozen=True, tag="cancel"):
    """Cancels this prediction; does nothing once the slot runs another."""

    slot: int
    id: str


class HealthCheck(_PredictorMessage, frozen=True, tag="healthcheck"):
    id: str


class Shutdown(_PredictorMessage, frozen=True, tag="shutdown"):
    """Ends the worker once nothing runs."""


# Control channel, to the server.


class Ready(_PredictorMessage, frozen=True, tag="ready"):
    """Reports that the set-up has succeeded.

    `slots`: their ids, in the order of their channels; `schema`: the OpenAPI document's components and what the
    predictor declared, as corosrv.workers.worker.signatures.signature makes it; `has_healthcheck`: the predictor has a
    check of its own.
    """

    slots: list[int]
    schema: dict[str, Any]
    protocol: int = PROTOCOL
    has_healthcheck: bool = True


class HealthCheckResult(_PredictorMessage, frozen=True, tag="healthcheck_result"):
    """Answers a HealthCheck. `status`: healthy or unhealthy."""

    id: str
    status: str
    error: str = ""


class WorkerLeaving(_PredictorMessage, frozen=True, tag="shutting_down"):
    pass


# Slot channel, to the worker.


class Predict(_PredictorMessage, frozen=True, tag="predict"):
    """Starts a prediction. `input` is validated and has its defaults; a large one is JSON in `input_file`.

    Output files go to `output_dir`.
    """

    id: str
    output_dir: str
    input: dict[str, Any] | None = None
    input_file: str | None = None
    context: dict[str, str] = {}


ControlToWorker = Init | Lanes | Cancel | HealthCheck | Shutdown
ControlToServer = Ready | Log | HealthCheckResult | SlotFailed | Fatal | DroppedLogs | WorkerLeaving
SlotToWorker = Predict
SlotToServer = Answer
