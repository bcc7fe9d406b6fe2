"""Errors of a server that cannot take a request now: it is starting, full or stopping, or a helper is not there.

Helpers are worker processes, the encoder, Redis and the hub that models come from. `retry_after` says when to try
again.
"""

from __future__ import annotations

import math
import random

from corosrv.base.errors.base import CorosrvError, ErrorKind

LONGEST_TOLD = 120  # seconds that this server asks for at most
_JITTER = 0.1  # of the wait, at most: clients that were refused together do not come back together


def retry_seconds(wait: float) -> int:
    """Returns what Retry-After says to a client for which there should be room after `wait` seconds.

    That is up to a tenth more, for who comes too early is refused again; from 1 to LONGEST_TOLD.
    """
    return math.ceil(min(max(wait * (1 + _JITTER * random.random()), 1), LONGEST_TOLD))


class Unavailable(CorosrvError):
    """This server cannot take the request now."""

    status = 503
    kind = ErrorKind.UNAVAILABLE
    retry_after: int | None = 1


class Starting(Unavailable):
    """The model is loading. `has_waited`: for as long as the operator lets requests wait for it.

    `retry_after`: the seconds after which it should be there.
    """

    def __init__(self, message: str, *, has_waited: bool = False, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        if has_waited:
            self.should_retry = False


class ModelFailed(Unavailable):
    """The model could not be loaded. Without `retry_after` nothing helps until an operator has acted."""

    def __init__(self, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ShuttingDown(Unavailable):
    """The server is stopping."""


class NoWorker(Unavailable):
    """The model or capability is known, but no worker serves it now, and none may be started."""


class NoDescriptor(Unavailable):
    """The process has no free file descriptor, and the request needs one."""


class SlotBusy(Unavailable):
    """The slot that the request needs has a task, which did not end in time."""


class TooManyBodies(Unavailable):
    """The bodies of all requests that are being read are too large together."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the bodies of all requests at once exceed the {limit} bytes allowed; try again")


class TooManyImages(Unavailable):
    """The images of all requests at once take too much memory together."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the images of all requests at once exceed the {limit} bytes allowed; try again")


class TooBusy(Unavailable):
    """A check of the request could not be made in time: the machine was busy or paused. The request may be fine."""


class QueueFull(Unavailable):
    """The queue of jobs that wait for a slot is full."""

    status = 429
    kind = ErrorKind.RATE_LIMITED
    code = "queue_full"


class LimitReached(Unavailable):
    """The API key has used what it may use for now. `retry_after`: seconds; None: the request will never fit."""

    status = 429
    kind = ErrorKind.RATE_LIMITED
    code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))
        if retry_after is None:
            self.should_retry = False


class KeyNotCounted(Unavailable):
    """A peer passes on a request of an API key with limits of tokens or of answers at once, and this server's file of
    keys has no such key: the answer would not be counted."""

    retry_after = None
    should_retry = False

    def __init__(self) -> None:
        super().__init__(
            "the limits of this API key are not kept by the replica that has the model: its file of keys differs"
        )


class EngineGone(Unavailable):
    """The engine has ended while it worked on the request, or on others like it, and another try would end it again."""

    code = "engine_gone"
    retry_after = None
    should_retry = False


class TooManyMembers(Unavailable):
    """The request names a group, and as many requests are in groups as may be."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} requests are in groups; try again, or leave out X-Group-Id")


class TooManyLogs(Unavailable):
    """The request is one that its client may come back to, and as many such requests run as may."""

    def __init__(self, n_running: int) -> None:
        super().__init__(f"{n_running} streams that their clients may resume run already; try again later")


class EncoderBusy(Unavailable):
    """Too many images wait for the encoder."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} images wait for the encoder already; try again")


class DecoderUnavailable(Unavailable):
    """An image cannot be decoded now: no process for it could be started, or somebody killed it."""


class EncoderUnavailable(Unavailable):
    """Images cannot be encoded now: the encoder process died too often, or did not answer in time."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class WireError(CorosrvError):
    """Two processes that share a channel cannot talk to each other."""


class BadFrame(WireError):
    """The received bytes are no message; what follows them cannot be understood either."""


class ProtocolError(WireError):
    """A message arrived that is not allowed, or not allowed now; the sender is broken."""


class RowsNotFinite(ProtocolError):
    """The encoder wrote rows with numbers that are not finite; they must not reach the decode loop."""


class FrameTooLarge(WireError):
    """The message is larger than the channel carries; nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a message of {size} bytes, where {limit} are allowed")


class ChannelClosed(WireError):
    """The other end is closed, or this one is."""


class RedisUnavailable(Unavailable):
    """Redis cannot be reached, or did not answer in time; whether it ran the command is not known."""


class RedisRefused(Unavailable):
    """Redis answered a command with an error; `word` is its first word, as `NOGROUP` or `OOM`."""

    def __init__(self, message: str, word: str) -> None:
        super().__init__(message)
        self.word = word


class HubError(CorosrvError):
    """A model of a hub cannot be had; the message says why, and what to do."""


class HubMissing(HubError):
    """The library that speaks to hubs is not installed."""

    def __init__(self) -> None:
        super().__init__("models named hf:... need the library huggingface_hub: pip install 'corosrv[hub]'")
