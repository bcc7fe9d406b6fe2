"""A loop for gevent in virtual time: timers jump, and what is ready runs in an order drawn from the seed.

No descriptor of the system is watched; those of `net` and `redis` are. `install` makes gevent use it, in a process that
has no hub yet: one process runs one world. What runs in it belongs to nobody, or to an `Owner`, a process of the world,
which can be stopped: whatever a callback starts belongs to the owner of that callback.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import gevent

START = 1000.0  # seconds on time.monotonic() when a run begins
EPOCH = 1.7e9  # seconds by which time.time() is ahead
READ, WRITE = 1, 2  # what a watcher watches for
MAX_TURNS = 100_000  # in which no time passes: somebody asks again and again


class Descriptor(Protocol):
    """Stands for an open file of the simulation."""

    def fileno(self) -> int: ...

    def events(self) -> int:
        """Returns for which of READ and WRITE it is ready."""


class Owner:
    """Stands for a process of the world, to which callbacks, watchers and timers belong."""


class Spinning(Exception):
    """Raised when the loop turns and no time passes."""


class _Callback:
    """Holds what runs in the next turn, as gevent knows it: it is true until it has run."""

    __slots__ = ("args", "callback", "owner")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], owner: Owner | None) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args: tuple[Any, ...] | None = args
        self.owner = owner

    def stop(self) -> None:
        self.callback = None
        self.args = None

    close = stop

    @property
    def pending(self) -> bool:
        return self.callback is not None

    def __bool__(self) -> bool:
        return self.args is not None


class _Watcher:
    """Calls back when its subclass says so; by itself never, as for signals, children and forks."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.callback: Callable[..., object] | None = None
        self.args: tuple[Any, ...] = ()
        self.owner = loop.owner
        self.ref = True
        self.pending = False

    @property
    def active(self) -> bool:
        return self.callback is not None

    def start(self, callback: Callable[..., object], *args: Any, **how: Any) -> None:
        self.callback, self.args = callback, args

    def stop(self) -> None:
        self.callback, self.args = None, ()

    def close(self) -> None:
        self.stop()

    def feed(self, revents: int, callback: Callable[..., object], *args: Any) -> None:
        self.loop.run_callback(callback, *args)

    def __enter__(self) -> _Watcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Timer(_Watcher):
    def __init__(self, loop: SimLoop, after: float, repeat: float) -> None:
        super().__init__(loop)
        self._after, self._repeat = max(after, 0.0), repeat
        self.setting = 0  # counts how often it was set: an older alarm is none

    def start(self, callback: Callable[..., object], *args: Any, **how: Any) -> None:
        super().start(callback, *args)
        self._set(self._after)

    def again(self, callback: Callable[..., object], *args: Any, **how: Any) -> None:
        super().start(callback, *args)
        self._set(self._repeat or self._after)

    def _set(self, seconds: float) -> None:
        self.setting += 1
        self.loop.set_alarm(seconds, self)

    def stop(self) -> None:
        self.callback, self.args = None, ()
        self.setting += 1

    def is_set(self, setting: int) -> bool:
        return self.callback is not None and self.setting == setting

    def ring(self) -> None:
        callback, args = self.callback, self.args
        assert callback is not None
        if self._repeat:
            self._set(self._repeat)
        else:
            self.callback, self.args = None, ()
        self.loop.call(callback, args, self.owner)

    def ring_late(self, setting: int) -> None:
        """Rings after its owner was stopped, unless it was set anew meanwhile."""
        if self.is_set(setting):
            self.ring()


class _Io(_Watcher):
    """Calls back, turn for turn, while its descriptor is ready."""

    def __init__(self, loop: SimLoop, fd: int, events: int) -> None:
        super().__init__(loop)
        self.fd, self.events_wanted = fd, events
        self._is_queued = False

    def start(self, callback: Callable[..., object], *args: Any, pass_events: bool = False, **how: Any) -> None:
        super().start(callback, *((self.events_wanted, *args) if pass_events else args))
        self.loop.watchers.setdefault(self.fd, {})[self] = None
        self.look()

    def stop(self) -> None:
        super().stop()
        watchers = self.loop.watchers.get(self.fd)
        if watchers is not None:
            watchers.pop(self, None)
            if not watchers:
                del self.loop.watchers[self.fd]

    def _is_ready(self) -> bool:
        descriptor = self.loop.descriptors.get(self.fd)
        return self.active and descriptor is not None and bool(descriptor.events() & self.events_wanted)

    def look(self) -> None:
        if not self._is_queued and self._is_ready():
            self._is_queued = True
            self.loop.add_callback(self.owner, self._fire)

    def _fire(self) -> None:
        self._is_queued = False
        if self._is_ready():
            assert self.callback is not None
            self.loop.call(self.callback, self.args, self.owner)
            self.look()


class _Idle(_Watcher):
    def start(self, callback: Callable[..., object], *args: Any, **how: Any) -> None:
        super().start(callback, *args)
        self.loop.idlers.append(self)


class _Async(_Watcher):
    def send(self) -> None:
        if self.callback is not None:
            self.loop.run_callback(self.callback, *self.args)

    def send_ignoring_arg(self, _: object = None) -> None:
        self.send()


class SimLoop:
    """Runs callbacks, watchers and timers in virtual time. There is one in a process."""

    seed = 0  # of the run; set before the hub is made
    default = True
    MAXPRI = MINPRI = 0
    backend = "simulation"
    approx_timer_resolution = 1e-9

    def __init__(self, flags: object = None, default: object = None) -> None:
        self.time = START
        self.random = random.Random(f"loop {self.seed}")
        self.error_handler: Any = None
        self.descriptors: dict[int, Descriptor] = {}
        self.watchers: dict[int, dict[_Io, None]] = {}  # by descriptor
        self.idlers: list[_Idle] = []
        self.n_calls = 0
        self.owner: Owner | None = None  # of what runs now
        self._held: dict[Owner, list[_Callback]] = {}  # what is ready of the owners that are stopped
        self.before_time: Callable[[], None] = lambda: None  # called when all is done and time is to pass
        self._ready: list[_Callback] = []
        # Timers with the setting that is meant, and functions with their arguments, by the time.
        self._alarms: list[tuple[float, float, int, Any, Any]] = []
        self._numbers = itertools.count()
        self._fds = itertools.count(1 << 24)  # numbers that no descriptor of the system has

    # The simulation's own.

    def open(self, descriptor: Descriptor) -> int:
        """Gives a descriptor its number, under which it can be watched."""
        fd = next(self._fds)
        self.descriptors[fd] = descriptor
        return fd

    def touch(self, fd: int) -> None:
        """Looks whether a descriptor is ready, after it has changed."""
        if watchers := self.watchers.get(fd):
            for watcher in list(watchers):
                watcher.look()

    def after(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        """Calls a function after a while, which nothing can cancel."""
        heapq.heappush(self._alarms, (self.time + seconds, self.random.random(), next(self._numbers), function, args))

    def stall(self, seconds: float) -> None:
        """Lets time pass in which nothing runs, as while the hub is held."""
        self.time += seconds

    @property
    def is_on_time(self) -> bool:
        """Tells whether nothing is due: neither now nor, after a stall, since some time."""
        return not self._alarms or self._alarms[0][0] > self.time

    @property
    def n_alarms(self) -> int:
        """Counts the timers that are set."""
        return sum(not isinstance(timer, _Timer) or timer.is_set(setting) for *_, timer, setting in self._alarms)

    def set_alarm(self, seconds: float, timer: _Timer) -> None:
        alarm = (self.time + seconds, self.random.random(), next(self._numbers), timer, timer.setting)
        heapq.heappush(self._alarms, alarm)

    def call(self, callback: Callable[..., object], args: tuple[Any, ...], owner: Owner | None = None) -> None:
        self.n_calls += 1
        self.owner = owner
        try:
            callback(*args)
        except BaseException:
            self.handle_error(callback, *sys.exc_info())
        finally:
            self.owner = None

    @contextlib.contextmanager
    def acting_for(self, owner: Owner) -> Iterator[None]:
        """Gives what is started to an owner. Nothing may wait meanwhile."""
        before, self.owner = self.owner, owner
        try:
            yield
        finally:
            self.owner = before

    def add_callback(self, owner: Owner | None, function: Callable[..., object], *args: Any) -> _Callback:
        """Calls a function of an owner in the next turn, or once that goes on."""
        handle = _Callback(function, args, owner)
        self._ready.append(handle)
        return handle

    def hold(self, owner: Owner) -> None:
        """Runs nothing of an owner from now on. Twice is harmless."""
        self._held.setdefault(owner, [])

    def release(self, owner: Owner) -> None:
        """Lets an owner go on where it was held. Twice is harmless."""
        self._ready += self._held.pop(owner, ())

    def drop(self, owner: Owner) -> None:
        """Forgets what was held of an owner, and watches nothing for it any more."""
        self._held.pop(owner, None)
        for watchers in list(self.watchers.values()):
            for watcher in [watcher for watcher in watchers if watcher.owner is owner]:
                watcher.stop()

    # What gevent needs.

    def run(self, nowait: bool = False, once: bool = False) -> None:
        n_turns = 0
        while True:
            if self._ready:
                n_turns += 1
                if n_turns > MAX_TURNS:
                    raise Spinning(f"{MAX_TURNS} turns in which no time passed; next is {self._ready[0].callback}")
                self._run_ready()
            elif self.idlers:
                idler = self.idlers.pop(0)
                if idler.callback is not None:
                    self.call(idler.callback, idler.args, idler.owner)
            else:
                self.before_time()
                n_turns = 0
                if not self._ready and not self._ring():
                    return
            if once:
                return

    def _run_ready(self) -> None:
        # Any order of what is ready now is one that a real run may have.
        batch, self._ready = self._ready, []
        if len(batch) > 1:
            self.random.shuffle(batch)
        for handle in batch:
            callback, args = handle.callback, handle.args
            if handle.owner in self._held:
                self._held[handle.owner].append(handle)
            elif callback is not None and args is not None:
                handle.callback = None
                self.call(callback, args, handle.owner)
                handle.args = None

    def _ring(self) -> bool:
        """Goes to the next alarm; returns False if there is none."""
        while self._alarms:
            at, _, _, timer, setting = heapq.heappop(self._alarms)
            if not isinstance(timer, _Timer):
                self.time = max(self.time, at)
                self.call(timer, setting)
                return True
            if timer.is_set(setting):
                self.time = max(self.time, at)
                if timer.owner in self._held:
                    self._held[timer.owner].append(_Callback(timer.ring_late, (setting,), timer.owner))
                else:
                    timer.ring()
                return True
        return False

    def handle_error(self, context: object, kind: Any, error: Any, traceback: Any) -> None:
        if self.error_handler is None or isinstance(error, Spinning):
            raise error
        self.error_handler.handle_error(context, kind, error, traceback)

    def run_callback(self, function: Callable[..., object], *args: Any) -> _Callback:
        return self.add_callback(self.owner, function, *args)

    run_callback_threadsafe = run_callback

    def now(self) -> float:
        return self.time

    def update_now(self) -> None:
        """Does nothing: time passes between two turns alone."""

    update = update_now

    def timer(self, after: float, repeat: float = 0.0, ref: bool = True, priority: object = None) -> _Timer:
        return _Timer(self, after, repeat)

    def io(self, fd: int, events: int, ref: bool = True, priority: object = None) -> _Io:
        if fd not in self.descriptors:
            raise OSError(f"descriptor {fd} is none of the simulation's")
        return _Io(self, fd, events)

    def idle(self, ref: bool = True, priority: object = None) -> _Idle:
        return _Idle(self)

    def async_(self, ref: bool = True, priority: object = None) -> _Async:
        return _Async(self)

    def prepare(self, *args: Any, **how: Any) -> _Watcher:
        return _Watcher(self)

    check = fork = signal = child = prepare

    def install_sigchld(self) -> None:
        """Does nothing: there are no children."""

    stop = ref = unref = reinit = install_sigchld

    def closing_fd(self, fd: int) -> bool:
        return False

    def destroy(self) -> bool:
        return True

    def fileno(self) -> None:
        return None

    @property
    def activecnt(self) -> int:
        return self.n_alarms

    def __repr__(self) -> str:
        return f"<SimLoop at {self.time:.3f}>"


class InlinePool:
    """Does the work of gevent's thread pool at once, in the calling greenlet, in no time."""

    def __init__(self, *args: Any, **how: Any) -> None:
        pass

    def apply(self, function: Callable[..., Any], args: Any = (), kwds: Any = None) -> Any:
        return function(*args, **(kwds or {}))

    def kill(self) -> None:
        """Does nothing: no thread is there."""


def _monotonic() -> float:
    hub = gevent._hub_local.get_hub_if_exists()
    return START if hub is None else float(hub.loop.time)


def install() -> None:
    """Gives the process the loop and its clock. Call it before anything takes the time's functions for its own."""
    gevent.config.loop = SimLoop
    gevent.config.threadpool = InlinePool
    time.monotonic = _monotonic
    time.time = lambda: EPOCH + _monotonic()


def make_hub(seed: int) -> Any:
    """Makes the hub of a run, and seeds the dice of whatever draws from the module `random`."""
    assert gevent._hub_local.get_hub_if_exists() is None, "one process runs one world"
    SimLoop.seed = seed
    random.seed(f"process {seed}")
    hub = gevent.get_hub()
    assert isinstance(hub.loop, SimLoop), "the process had a loop already"
    return hub
