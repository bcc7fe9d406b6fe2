"""A front's connection to an engine's process: its greeting, its messages, and whether the process hangs."""

from __future__ import annotations

import contextlib

import gevent

from corosrv.base import errors
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.models.engine.process.connector import PATIENCE, EngineConnector, kill_session
from corosrv.models.engine.process.messages import (
    MAX_FRAME,
    PROTOCOL,
    EngineHello,
    EngineRefusal,
    FromFront,
    FrontHello,
    ToFront,
    front_codec,
)
from corosrv.workers.wire.gevent_channel import GeventChannel


class EngineLink:
    """One connection to an engine's process that has greeted, until either side ends it."""

    def __init__(self, channel: GeventChannel[FromFront, ToFront], pid: int) -> None:
        self._channel = channel
        self.pid = pid
        self._n_silent = 0  # looks at which nothing had come since the one before
        self._n_still = 0  # looks at which something ran and no step had been made
        self._n_steps = -1

    def send(self, message: FromFront) -> None:
        """Sends a message, unless the connection has ended: whoever receives from it notices that."""
        with contextlib.suppress(errors.ChannelClosed):
            self._channel.send(message)

    def receive(self) -> ToFront | None:
        """Returns the next message, for which it waits; None at the end. Raises WireError."""
        message = self._channel.receive()
        self._n_silent = 0
        return message

    def count_look(self, stats: DecodeStats | None) -> int:
        """Counts one more look at the process, whose last counters are given; None while it loads its model.

        Returns the number of looks in a row at which it had said nothing, or had made no step while something ran.
        """
        self._n_silent += 1
        makes_steps = stats is None or not stats.running - stats.paused > 0 or stats.steps != self._n_steps
        self._n_still = 0 if makes_steps else self._n_still + 1
        self._n_steps = -1 if stats is None else stats.steps
        return max(self._n_silent, self._n_still)

    def kill(self) -> None:
        """Kills the process, with all of its session, and closes the connection."""
        kill_session(self.pid)
        self.close()

    def close(self) -> None:
        self._channel.close()


def greet(connector: EngineConnector) -> EngineLink | None:
    """Connects to the engine's process, which is started if need be, and waits for its greeting.

    Returns None where it ends before it greets, as one does that was about to end, or is killed because it does not.
    Raises ModelFailed if it refuses this front.
    """
    channel: GeventChannel[FromFront, ToFront] = GeventChannel(connector.connect(), front_codec(), MAX_FRAME)
    welcome = None
    try:
        channel.send(FrontHello(PROTOCOL, connector.digest))
        with gevent.Timeout(PATIENCE):
            welcome = channel.receive()
    except errors.WireError:
        pass
    except gevent.Timeout:
        connector.kill_silent()
    finally:
        if not isinstance(welcome, EngineHello):
            channel.close()
    if isinstance(welcome, EngineRefusal):
        raise errors.ModelFailed(f"the engine cannot be used: {welcome.reason}")
    return EngineLink(channel, welcome.pid) if isinstance(welcome, EngineHello) else None
