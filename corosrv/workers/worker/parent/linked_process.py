"""Links a child process through channels: one for control, and lanes for messages that must not wait for each other.

It knows no message itself: the codecs and the listener that its owner passes in define what the process is for.
"""

from __future__ import annotations

import _socket  # the system's own sockets, whatever is patched
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import gevent
from gevent.event import Event

from corosrv.base.errors import ChannelClosed, WireError
from corosrv.workers.wire.codec import Codec, In
from corosrv.workers.wire.descriptors import MAX_FDS
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.worker.parent.process import Exit, Process

log = logging.getLogger("corosrv.worker")

# A channel that ends may be the first sign of a process that does. Its end says more, so it is given time, in seconds.
LAST_BREATH = 0.5
DEATH = 2.0  # seconds that the kernel may take to end what was killed

ControlOut = TypeVar("ControlOut")
ControlIn = TypeVar("ControlIn")
LaneOut = TypeVar("LaneOut")
LaneIn = TypeVar("LaneIn")
ControlIn_contra = TypeVar("ControlIn_contra", contravariant=True)
LaneIn_contra = TypeVar("LaneIn_contra", contravariant=True)


class AnyProcess(Protocol):
    """Stands for a process that is linked: a child, or one that somebody else has started."""

    @property
    def pid(self) -> int: ...

    @property
    def exit(self) -> Exit | None:
        """Tells how it ended; None while it runs."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for its end, at most `timeout` seconds. Returns whether it has ended."""

    def terminate(self) -> None:
        """Asks it to end. Does not wait."""

    def kill(self) -> None:
        """Ends it. Does not wait."""


class ProcessListener(Protocol[ControlIn_contra, LaneIn_contra]):
    """Receives the messages of a process, and learns of its end. Only `wait_for_room` may wait."""

    def on_control(self, message: ControlIn_contra) -> None:
        """Handles a control message. Raises WireError for an invalid one: the process is killed."""

    def on_lane(self, lane: int, message: LaneIn_contra, n_bytes: int) -> None:
        """Handles a message of a lane. Raises WireError for an invalid one: the lane is closed."""

    def wait_for_room(self, lane: int) -> None:
        """Waits until more messages of this lane may come."""

    def on_lane_broken(self, lane: int, fault: str) -> None:
        """Takes note that a lane was closed while the process goes on."""

    def on_end(self, exit: Exit, fault: str) -> None:
        """Takes note of the end, once all messages were handled. `fault`: why the process was killed, or empty."""


class ControlListener(ProcessListener[ControlIn, LaneIn]):
    """The listener of a process that needs no lanes."""

    def on_lane(self, lane: int, message: LaneIn, n_bytes: int) -> None:
        """Does nothing."""

    def wait_for_room(self, lane: int) -> None:
        """Returns at once."""

    def on_lane_broken(self, lane: int, fault: str) -> None:
        """Does nothing."""


class LinkedProcess(Generic[ControlOut, ControlIn, LaneOut, LaneIn]):
    """Owns the process, the channels and the greenlets that read them. Belongs to the thread of one hub."""

    def __init__(
        self,
        listener: ProcessListener[ControlIn, LaneIn],
        control: Codec[ControlOut, ControlIn],
        lane: Codec[LaneOut, LaneIn],
        *,
        takes_fds: bool = False,
    ) -> None:
        """`takes_fds`: descriptors may come with the messages of lanes."""
        self._listener = listener
        self._control_codec = control
        self._lane_codec = lane
        self._takes_fds = takes_fds
        self._fault = ""
        self._is_over = Event()  # set after the listener's on_end
        self._readers: list[gevent.Greenlet] = []
        self._process: AnyProcess  # once it is started, as is the control channel
        self._lifeline: int | None = None
        self.control: GeventChannel[ControlOut, ControlIn]
        self.lanes: list[GeventChannel[LaneOut, LaneIn]] = []

    @property
    def is_started(self) -> bool:
        return hasattr(self, "_process")

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        *,
        own_session: bool = True,
    ) -> None:
        """Runs `command --control FD --lifeline FD`: its ends of the control channel, and of a pipe.

        The pipe's other end is closed when this process ends, however it does, and carries nothing. `own_session`: see
        Process. Raises OSError, with nothing left behind.
        """
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as theirs:
            our_end, their_end = _socket.socketpair()
            on_failure.callback(our_end.close)
            theirs.callback(their_end.close)
            their_lifeline, our_lifeline = os.pipe()
            theirs.callback(os.close, their_lifeline)
            on_failure.callback(os.close, our_lifeline)
            ends = ["--control", str(their_end.fileno()), "--lifeline", str(their_lifeline)]
            inherited = [their_end.fileno(), their_lifeline]
            process = Process([*command, *ends], inherited=inherited, env=env, cwd=cwd, own_session=own_session)
            on_failure.pop_all()
        self._lifeline = our_lifeline
        self.adopt(process, our_end)

    def adopt(self, process: AnyProcess, connection: _socket.socket) -> None:
        """Links a process that runs already, over its control channel's end here, which this owns from now on."""
        self._process = process
        self.control = GeventChannel(connection, self._control_codec)
        self._read(self._read_control)
        gevent.spawn(self._await_end)

    def open_lanes(self, n_lanes: int, message: ControlOut) -> None:
        """Makes lanes and sends their other ends over control, beside `message`, as often as it takes.

        May be called again for more. Raises OSError where no descriptors are left.
        """
        with contextlib.ExitStack() as theirs:
            fds = [self._open_lane(theirs) for _ in range(n_lanes)]
            with contextlib.suppress(ChannelClosed):  # then its end is near, and says what is to be said
                for start in range(0, n_lanes, MAX_FDS):
                    self.control.send(message, fds[start : start + MAX_FDS])

    def _open_lane(self, theirs: contextlib.ExitStack) -> int:
        """Opens a lane and returns the descriptor of its other end, which `theirs` closes."""
        our_end, their_end = _socket.socketpair()
        theirs.callback(their_end.close)
        self.lanes.append(GeventChannel(our_end, self._lane_codec, takes_fds=self._takes_fds))
        self._read(self._read_lane, len(self.lanes) - 1)
        return their_end.fileno()

    def _read(self, read: Callable[..., None], *arguments: int) -> None:
        if self._process.exit is None:
            self._readers.append(gevent.spawn(read, *arguments))

    def _read_control(self) -> None:
        fault = "it closed its control channel"
        try:
            while (message := self.control.receive()) is not None:
                self._listener.on_control(message)
        except WireError as error:
            fault = f"protocol error on its control channel: {error}"
        except Exception as error:  # a process whose messages are not handled is of no use
            log.exception("a control message could not be handled")
            fault = f"its control message could not be handled: {error}"
        if not self._process.wait(LAST_BREATH):
            self.kill(fault)

    def _read_lane(self, lane: int) -> None:
        channel = self.lanes[lane]
        fault = "the worker closed its channel"
        try:
            while (message := channel.receive()) is not None:
                self._tell(lane, message)
                self._listener.wait_for_room(lane)
        except WireError as error:
            fault = f"protocol error: {error}"
        except Exception as error:  # a lane whose messages are not handled is of no use
            log.exception("a message of lane %d could not be handled", lane)
            fault = f"its message could not be handled: {error}"
        if not channel.is_closed and not self._process.wait(LAST_BREATH):
            channel.close()
            self._listener.on_lane_broken(lane, fault)

    def kill(self, fault: str = "") -> None:
        """Kills the process and all of its group, if it has not ended; `on_end` gets the first fault."""
        if self.is_started and self._process.exit is None:
            self._fault = self._fault or fault
            self._process.kill()

    def terminate(self, patience: float) -> None:
        """Asks the process and all of its group to end, and kills them after `patience` seconds. Waits."""
        if self.is_started:
            self._process.terminate()
        self.end_within(patience)

    def wait(self, timeout: float) -> bool:
        """Waits until the process has ended and on_end was called; returns whether it has."""
        return bool(self._is_over.wait(timeout))

    def end_within(self, seconds: float) -> None:
        """Waits until the process has ended and on_end was called; kills the process after `seconds`."""
        if self.is_started and not self._is_over.wait(seconds):
            self.kill()
            if not self._is_over.wait(DEATH):
                log.error("process %d was killed and has not ended", self.pid)

    def _await_end(self) -> None:
        self._process.wait()
        assert self._process.exit is not None
        # Some may wait for room that nobody will make.
        gevent.killall(self._readers)
        self._drain_channels()
        self.control.close()
        for channel in self.lanes:
            channel.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
        self._listener.on_end(self._process.exit, self._fault)
        self._is_over.set()

    def _drain_channels(self) -> None:
        """Handles messages that arrived before the end: no more than sockets hold, so without waiting for room."""
        _drain(self.control, self._listener.on_control)
        for lane, channel in enumerate(self.lanes):
            _drain(channel, functools.partial(self._tell, lane))

    def _tell(self, lane: int, message: LaneIn) -> None:
        self._listener.on_lane(lane, message, self.lanes[lane].n_bytes)


def _drain(channel: GeventChannel[Any, In], handle: Callable[[In], None]) -> None:
    channel.hang_up()
    try:
        while (message := channel.receive()) is not None:
            handle(message)
    except WireError:
        pass  # as half a frame: the process has ended anyway
    except Exception:  # on_end has to be called whatever the last messages were
        log.exception("a last message could not be handled")
