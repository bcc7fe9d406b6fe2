"""Decides which calls may run as one batch, and when it starts."""

from __future__ import annotations

import math

from corosrv.contracts.jobs.infer import BatchLimits, InferRequest
from corosrv.workers.dispatch.estimates import RunningMean

# Names, datatypes and non-batch dimensions of the inputs. The model and its version are those of the queue.
Signature = tuple[tuple[str, str, tuple[int, ...], bool], ...]

MAX_SIGNATURES = 64  # that gather at once for one key; calls beyond run one by one
LONGEST_GAP = 10  # delays; a longer time without calls says no more than this


def signature_of(request: InferRequest) -> Signature:
    """Returns what the calls of one batch must share. The first dimension of a tensor is that of the batch."""
    return tuple((tensor.name, tensor.datatype, tensor.shape[1:], bool(tensor.shape)) for tensor in request.inputs)


class ArrivalGaps:
    """Follows the time between two calls, to tell whether another is likely to come soon."""

    __slots__ = ("_last", "_mean")

    def __init__(self) -> None:
        self._mean = RunningMean()
        self._last = -math.inf

    def add(self, now: float, delay: float) -> None:
        """Records an arrival. `delay`: seconds that a batch may gather."""
        self._mean.add(min(now - self._last, LONGEST_GAP * delay))
        self._last = now

    def is_another_likely(self, delay: float) -> bool:
        """Returns whether a call comes within `delay` with a probability of a half, if they come independently."""
        return self._mean.value is not None and delay > math.log(2) * self._mean.value


def ready_at(
    limits: BatchLimits, n_waiting: int, oldest: float, earliest: float, service: float | None, is_another_likely: bool
) -> float:
    """Returns when a batch is to start, if a permit is free then.

    `oldest`: when its first call arrived; `earliest`: the first deadline of its calls, until which `service` seconds of
    work must be left.
    """
    if n_waiting >= limits.max_size or not is_another_likely:
        return -math.inf
    return min(oldest + limits.max_delay_ms / 1000, earliest - (service or 0.0))
