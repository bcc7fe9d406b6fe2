"""Relays the channels of a worker process over one TCP connection: either side speaks to Unix sockets, as elsewhere.

The server's end and the worker's end are the same: each has local sockets, one for every lane, and a `Trunk`.
"""

from __future__ import annotations

import _socket
import logging
import os
import ssl
import stat
from typing import Any

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from corosrv.base.errors import ChannelClosed, WireError
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.gevent_channel import GeventChannel
from corosrv.workers.wire.trunk import CONTROL, Arrived, LaneClosed, Trunk

log = logging.getLogger("corosrv.wire")

LAST_WORDS = 2.0  # seconds in which the last messages of an end are passed on
_READ_SIZE = 256 << 10  # bytes
_MOST_QUEUED = 1 << 20  # bytes of a lane, above which nothing more of it is read
_LONG_SEAL = 4 << 20  # bytes of memory files that are sealed in a thread
_READS_IN_A_ROW = 16
_READ, _WRITE = 1, 2  # what a watcher of gevent watches for
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class RawCodec:
    """The codec of messages that are passed on unread."""

    def encode(self, message: bytes) -> bytes:
        return message

    def decode(self, data: bytes) -> bytes | None:
        return data


class Relay:
    """Owns a connection, and the local sockets of its lanes. Belongs to the thread of one hub."""

    def __init__(self, connection: Any, control: _socket.socket, *, opens_lanes: bool) -> None:
        """`connection`: a TCP socket of the system's, or of TLS. `control`: the local end of the control channel.

        `opens_lanes`: lanes are opened here, by sockets that come with local messages, and not by the other side.
        """
        connection.setblocking(False)
        self._connection = connection
        loop = get_hub().loop
        self._readable: Any = loop.io(connection.fileno(), _READ)
        self._writable: Any = loop.io(connection.fileno(), _WRITE)
        self._trunk = Trunk(opens_lanes=opens_lanes)
        self._opens_lanes = opens_lanes
        self._channels: dict[int, GeventChannel[bytes, bytes]] = {}
        self._readers: dict[int, gevent.Greenlet] = {}
        self._room: dict[int, Event] = {}  # of lanes that wait for it
        self._has_news = Event()  # something is to be sent
        self._is_ended = Event()
        self._closing: set[int] = set()  # lanes that end once their sockets have taken all
        self.fault = ""  # why it ended, where neither side wanted it
        self._add(CONTROL, control)

    def run(self) -> None:
        """Relays until either side closes the control channel or the connection ends. Waits. Raises nothing."""
        greenlets = [gevent.spawn(self._guard, work) for work in (self._receive_all, self._send_all, self._follow_end)]
        try:
            self._is_ended.wait()
            self._pass_on_rest()
        finally:
            gevent.killall([*greenlets, *self._readers.values()])
            for channel in self._channels.values():
                channel.close()
            self._trunk.close()
            self._readable.close()
            self._writable.close()
            self._connection.close()

    def _guard(self, work: Any) -> None:
        """Ends all with the first part that ends."""
        try:
            work()
        except WireError as error:
            self.fault = str(error)
            log.warning("the connection of a worker is given up: %s", error)
        except OSError as error:
            self.fault = str(error)
        except Exception as error:  # a relay that does not go on must not stay
            self.fault = str(error)
            log.exception("the connection of a worker could not be relayed")
        self._is_ended.set()

    def _pass_on_rest(self) -> None:
        """Waits until local sockets have taken what had come before the end, for LAST_WORDS seconds at most."""
        with gevent.Timeout(LAST_WORDS, False):
            for channel in list(self._channels.values()):
                while channel.n_unsent and not channel.is_closed:
                    gevent.sleep(0.01)

    # From the local sockets.

    def _add(self, lane: int, sock: _socket.socket) -> None:
        channel: GeventChannel[bytes, bytes] = GeventChannel(sock, RawCodec(), takes_fds=True)
        channel.on_sent = lambda: self._on_sent(lane)
        self._channels[lane] = channel
        self._readers[lane] = gevent.spawn(self._read_lane, lane, channel)

    def _read_lane(self, lane: int, channel: GeventChannel[bytes, bytes]) -> None:
        try:
            while (message := channel.receive()) is not None:
                self._post(lane, message, channel.take_fds())
                self._wait_for_room(lane)
        except (WireError, OSError) as error:
            log.warning("lane %d of a worker is closed: %s", lane, error)
        if lane != CONTROL:
            channel.close()
            self._trunk.close_lane(lane)
            self._has_news.set()

    def _post(self, lane: int, message: bytes, fds: tuple[int, ...]) -> None:
        """Queues a message. Raises WireError for descriptors of anything but new lanes and sealed memory files."""
        sockets = [fd for fd in fds if self._opens_lanes and stat.S_ISSOCK(os.fstat(fd).st_mode)]
        files = [fd for fd in fds if fd not in sockets]
        try:
            values = [descriptors.map_value(fd, os.fstat(fd).st_size) for fd in files]
            lanes = [self._trunk.open_lane() for _ in sockets]
            self._trunk.post(lane, message, lanes, values)
        except BaseException:
            descriptors.close_all(sockets)
            raise
        finally:
            descriptors.close_all(files)
        for number, fd in zip(lanes, sockets, strict=True):
            self._add(number, _socket.socket(fileno=fd))
        self._has_news.set()

    def _wait_for_room(self, lane: int) -> None:
        while self._trunk.n_queued(lane) > _MOST_QUEUED:
            self._room[lane] = Event()
            self._room[lane].wait()

    def _tell_room(self) -> None:
        for lane, event in list(self._room.items()):
            if self._trunk.n_queued(lane) <= _MOST_QUEUED:
                del self._room[lane]
                event.set()

    def _follow_end(self) -> None:
        """Closes the control lane behind the last words of all lanes, once its local socket has ended."""
        self._readers[CONTROL].join()
        gevent.joinall([reader for lane, reader in self._readers.items() if lane != CONTROL], timeout=LAST_WORDS)
        self._trunk.close_lane(CONTROL)
        self._has_news.set()
        self._is_ended.wait()  # what is left is sent before

    # To and from the other side.

    def _send_all(self) -> None:
        while True:
            self._has_news.clear()
            if data := self._trunk.take():
                self._write(memoryview(data))
                self._tell_room()
            elif self._trunk.is_over:
                return
            else:
                self._has_news.wait()

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                n_sent = self._connection.send(data)
            except _LATER:
                n_sent = 0
            data = data[n_sent:]
            if not n_sent:
                get_hub().wait(self._writable)

    def _receive_all(self) -> None:
        while True:
            for _ in range(_READS_IN_A_ROW):
                try:
                    data = self._connection.recv(_READ_SIZE)
                except _LATER:
                    get_hub().wait(self._readable)
                    continue
                if not data:
                    return
                for arrived in self._trunk.feed(data):
                    if isinstance(arrived, Arrived):
                        self._hand_over(arrived)
                    elif arrived.lane == CONTROL:
                        return
                    else:
                        self._close_later(arrived)
                self._release(self._trunk.touched())
                self._has_news.set()  # there may be room for more at the other side
            gevent.sleep(0)  # others have to have their turn, however fast it comes

    def _release(self, lanes: set[int]) -> None:
        for lane in lanes:
            channel = self._channels[lane]
            if not channel.n_unsent and self._trunk.release(lane):
                self._has_news.set()

    def _on_sent(self, lane: int) -> None:
        self._release({lane})
        if lane in self._closing:
            get_hub().loop.run_callback(self._channels[lane].close)

    def _close_later(self, closed: LaneClosed) -> None:
        """Closes a lane's socket, once it has taken what came before."""
        channel = self._channels[closed.lane]
        if channel.n_unsent:
            self._closing.add(closed.lane)
        else:
            channel.close()

    def _hand_over(self, arrived: Arrived) -> None:
        """Sends a message to its local socket, with ends of new lanes and sealed files. May wait for a large file."""
        fds = list(arrived.fds)
        try:
            for fd in arrived.fds:
                if arrived.n_bytes < _LONG_SEAL:
                    descriptors.seal(fd)
                else:
                    call_in_thread(descriptors.seal, fd)
            for number in arrived.lanes:
                ours, theirs = _socket.socketpair()
                fds.append(theirs.detach())
                self._add(number, ours)
            self._channels[arrived.lane].send(arrived.message, fds)
        except ChannelClosed:
            pass  # whoever reads it hears of that, and tells the other side
        finally:
            descriptors.close_all(fds)
