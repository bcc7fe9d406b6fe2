"""Planted bugs: small patches of the product, each of which its world has to find.

A patch replaces words of one module, which stand there once, before the module is imported. One whose words are there
no more is out of date: plant the same bug in the code that has taken their place.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Bug:
    """Replaces `old` by `new` in a module; `world` finds it, and the tests begin with a seed that does.

    A module of the native core is the path of its file without the ending.
    """

    world: str
    module: str
    old: str
    new: str
    seed: int = 1
    often: str = ""  # a fate that half of the processes have, so that the bug is met

    @property
    def path(self) -> Path:
        if self.world == "loop":
            return ROOT / "native" / "src" / f"{self.module}.cpp"
        return ROOT / f"{self.module.replace('.', '/')}.py"

    def source(self) -> str:
        """Returns the module's text with the bug. Raises ValueError where the words do not stand there once."""
        text = self.path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.module} has {text.count(self.old)} times what the bug replaces: {self.old!r}")
        return text.replace(self.old, self.new)


BUGS = {
    "a free permit wakes nobody": Bug(
        "pool", "corosrv.fleet.upstreams.upstream",
        "        self._set_timer()\n        self._listener()",
        "        self._set_timer()",
    ),
    "a lost call keeps its permit": Bug(
        "pool", "corosrv.fleet.upstreams.forwarded_call",
        "        self._permit.release()",
        "        if type(self._error).__name__ != 'UpstreamLost':\n            self._permit.release()",
    ),
    "a connection is used again in mid-answer": Bug(
        "pool", "corosrv.fleet.upstreams.exchange",
        "if connection is not None and is_whole and self._is_reusable:",
        "if connection is not None and self._head is not None:",
    ),
    "a call is repeated after bytes of it were sent": Bug(
        "pool", "corosrv.workers.dispatch.lives",
        "n_attempts < MAX_ATTEMPTS and not has_sent",
        "n_attempts < MAX_ATTEMPTS",
    ),
    "a call is repeated once too often": Bug(
        "pool", "corosrv.workers.dispatch.lives",
        "n_attempts < MAX_ATTEMPTS",
        "n_attempts <= MAX_ATTEMPTS",
        seed=2,
    ),
    "deadlines do not ring": Bug(
        "pool", "corosrv.workers.dispatch.lives",
        'if call.deadline != float("inf"):',
        "if False:",
    ),
    "a trial is never forgotten": Bug(
        "pool", "corosrv.fleet.upstreams.failures",
        "        if is_trial and self._state is BreakerState.TRYING:",
        "        if False:",
        seed=6,
    ),
    "a call that was given up runs on": Bug(
        "pool", "corosrv.workers.dispatch.call",
        "if self._running is not None and self._n_running:",
        "if False:",
        seed=5,
    ),
    "a removed upstream keeps its connections": Bug(
        "pool", "corosrv.fleet.upstreams.connections",
        "if self._is_closed or len(self._idle) >= self.max_idle:",
        "if len(self._idle) >= self.max_idle:",
        seed=21,
    ),
    "nobody hears that an upstream runs nothing": Bug(
        "pool", "corosrv.fleet.upstreams.upstream",
        "        if not self._calls:\n            self._is_idle.set()",
        "        pass",
    ),
    "a handler waits on once its client has read": Bug(
        "pool", "corosrv.contracts.jobs.buffered",
        "        self._n_bytes = 0\n        if self._room is not None:",
        "        self._n_bytes = 0\n        if False:",
        seed=9,
    ),
    "the breaker opens and tells no time": Bug(
        "pool", "corosrv.fleet.upstreams.upstream",
        "changes_at = math.inf if self.is_gone else self.breaker.next_change(now)",
        "changes_at = math.inf",
    ),
    "the body of a stream has to end": Bug(
        "pool", "corosrv.fleet.upstreams.forwarded_call",
        "        self._end()\n        with gevent.Timeout(LINGER, False):",
        "        self._end()\n        if True:",
    ),
    "a slot keeps its permit": Bug(
        "workers", "corosrv.workers.worker.parent.slots",
        "            self.call = None\n            call.permit.release()",
        "            self.call = None\n            if call.permit.slot != 1:\n                call.permit.release()",
    ),
    "calls of a process that has ended go on": Bug(
        "workers", "corosrv.workers.worker.parent.slots",
        '"""Fails all running calls: the worker has ended."""\n        for slot in self._slots:',
        '"""Fails all running calls: the worker has ended."""\n        for slot in self._slots[1:]:',
    ),
    "a lease never expires": Bug(
        "workers", "corosrv.workers.worker.parent.app_watch",
        "return now - self._renewed >= self._lease",
        "return False",
        seed=9,
    ),
    "a handler that hangs keeps its slot": Bug(
        "workers", "corosrv.workers.worker.parent.app_watch",
        "return should_end_at is not None and now - max(should_end_at, self._awake_since) >= self._hang_grace",
        "return False",
        seed=7,
    ),
    "a cancel is not sent": Bug(
        "workers", "corosrv.workers.worker.parent.app_call",
        "        if len(news) == len(self._items):",
        "        if len(news) == len(self._items) and not is_deadline:\n            return\n"
        "        if len(news) == len(self._items):",
    ),
    "a call that may have run is repeated": Bug(
        "workers", "corosrv.workers.dispatch.lives",
        "return is_idempotent and is_open and",
        "return is_open and",
    ),
    "nobody hears that a worker is ready": Bug(
        "workers", "corosrv.workers.manager.worker_pool",
        "        self._dispatcher.add_host(worker)",
        "        if place.incarnation % 3:\n            self._dispatcher.add_host(worker)",
        seed=2,
    ),
    "a worker that drains is ended while calls run": Bug(
        "workers", "corosrv.workers.worker.parent.app_process",
        "if self.state is WorkerState.DRAINING and self.in_flight == 0 and not self._is_stopping:",
        "if self.state is WorkerState.DRAINING and not self._is_stopping:",
        seed=2,
    ),
    "an answer is kept under no key": Bug(
        "workers", "corosrv.workers.dispatch.lives",
        "            call.keeper.end(error, now, has_run=call.n_attempts > 0)",
        "            call.keeper.end(error or CallCancelled(''), now, has_run=call.n_attempts > 0)",
    ),
    "a caller is charged for ever for a call that it gave up": Bug(
        "workers", "corosrv.workers.dispatch.lives",
        "        for account in attempt.accounts:",
        "        for account in attempt.accounts if not attempt.is_abandoned else ():",
    ),
    "a batch that is ready is forgotten": Bug(
        "workers", "corosrv.workers.dispatch.scheduler",
        "            self._timetable.add(ready_at, self._look_again, group)",
        "            pass",
        seed=4,
    ),
    "an idle worker that fails is said to drain": Bug(
        "workers", "corosrv.workers.worker.parent.app_process",
        "if self.state is WorkerState.READY and self.in_flight == 0:",
        "if False:",
    ),
    "a process that does not stop is not killed": Bug(
        "workers", "corosrv.workers.worker.parent.linked_process",
        "        if self.is_started and not self._is_over.wait(seconds):\n            self.kill()",
        "        if self.is_started and not self._is_over.wait(seconds):\n            pass",
    ),
    "the room of a worker that ends is given away too early": Bug(
        "workers", "corosrv.workers.manager.plan",
        "_sum(pool.claim * pool.count(*HOLDING) for pool in pools)",
        "_sum(pool.claim * pool.live for pool in pools)",
    ),
    "a Redis that has lost all grants at once": Bug(
        "fronts", "corosrv.fleet.cluster.namespace",
        "  if last > 0 then hold_until = now",
        "  if false then hold_until = now",
        seed=8,
    ),
    "the permits of the dead never come back": Bug(
        "fronts", "corosrv.fleet.cluster.namespace",
        "or now - record.at > lease then",
        "then",
    ),
    "a run that was held up counts": Bug(
        "fronts", "corosrv.fleet.cluster.namespace",
        "if tonumber(ARGV[8]) <=",
        "if false and tonumber(ARGV[8]) <=",
        seed=14,
    ),
    "what is granted is forgotten": Bug(
        "fronts", "corosrv.fleet.cluster.permits",
        "share.receive(held if share.held is None else share.held + granted)",
        "share.receive(share.held)",
    ),
    "ids without text are not noted": Bug(
        "engines", "corosrv.models.engine.process.jobs",
        "self.generated += chunk.ids",
        "self.generated += chunk.ids if chunk.text else b''",
    ),
    "the first state of a sampler is kept": Bug(
        "engines", "corosrv.models.engine.process.jobs",
        "self.state = chunk.state or self.state",
        "self.state = self.state or chunk.state",
    ),
    "what was sent is counted in characters": Bug(
        "engines", "corosrv.models.engine.process.jobs",
        "len(chunk.text.encode())",
        "len(chunk.text)",
    ),
    "tasks that go on are taken for the first ones": Bug(
        "engines", "corosrv.models.engine.process.jobs",
        "place = self._running[arrived.index]",
        "place = arrived.index",
    ),
    "answers go on with the scales of adapters that are set now": Bug(
        "engines", "corosrv.models.engine.process.ledger",
        "job.keep_scales(message.adapter_scales)",
        "pass",
    ),
    "an engine is not told of the scales that were set before it": Bug(
        "engines", "corosrv.models.engine.process.remote",
        "                self._send(self._scales)",
        "                pass",
    ),
    "nobody is suspected": Bug(
        "engines", "corosrv.models.engine.process.jobs",
        "self._suspects |= self._ran & running",
        "pass",
        seed=3,
    ),
    "suspects run beside each other": Bug(
        "engines", "corosrv.models.engine.process.session",
        "with self._host.alone_among_suspects():",
        "with contextlib.nullcontext():",
        seed=6,
    ),
    "nobody is told that a suspect runs": Bug(
        "engines", "corosrv.models.engine.process.session",
        "            self._accept(submit)\n            self._run_now(submit)",
        "            self._run_now(submit)",
        seed=3,
    ),
    "the end of a suspect is told after the next one runs": Bug(
        "engines", "corosrv.models.engine.process.session",
        "            self._deliver()",
        "            pass",
        seed=81,
    ),
    "what is read makes no room": Bug(
        "engines", "corosrv.models.engine.process.session",
        "job.n_unread -= message.n_bytes",
        "pass",
    ),
    "a job may leave everything unread": Bug(
        "engines", "corosrv.models.engine.process.session",
        "return job.n_unread > WINDOW or",
        "return",
        seed=5,
    ),
    "a front that has left is kept": Bug(
        "engines", "corosrv.models.engine.process.host",
        "            self._sessions.pop(session, None)",
        "            pass",
    ),
    "an engine ends with its last front": Bug(
        "engines", "corosrv.models.engine.process.host",
        "(LINGER if lingers else 0)",
        "0",
    ),
    "several engines hold the lock": Bug(
        "engines", "corosrv.models.engine.process.connector",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        seed=8,
    ),
    "an engine that could not load the model keeps its fronts": Bug(
        "engines", "corosrv.models.engine.process.remote",
        "            link.close()  # a process that could not load the model ends once no front holds on to it",
        "            pass",
        seed=3,
    ),
    "an engine that hangs is not ended": Bug(
        "engines", "corosrv.models.engine.process.remote",
        "* _LOOK > HUNG:",
        "< 0:",
    ),
    "an engine that never greets is not ended": Bug(
        "engines", "corosrv.models.engine.process.connector",
        "        connector.kill_silent()",
        "        pass",
        seed=7,
    ),
    "an engine that stops while it loads is not ended": Bug(
        "engines", "corosrv.models.engine.process.remote",
        "if (link := self._link) is None:",
        "if (link := self._link) is None or not self._is_up.is_set():",
        often="stops while it loads",
    ),
    "a job that has ended is kept": Bug(
        "engines", "corosrv.models.engine.process.ledger",
        "                if job.is_over:",
        "                if False:",
    ),
    "a cancelled job wakes nobody": Bug(
        "loop", "handover/inbox",
        "    mail_.has_cancellations = true;\n    is_woken_ = true;",
        "    mail_.has_cancellations = true;",
    ),
    "room in a reader wakes nobody": Bug(
        "loop", "handover/inbox",
        "void Inbox::on_room() {\n  {\n    MutexLock lock(mutex_);\n    is_woken_ = true;",
        "void Inbox::on_room() {\n  {\n    MutexLock lock(mutex_);",
    ),
    "tasks that have ended count for ever": Bug(
        "loop", "handover/inbox",
        "  in_flight_ -= std::min(in_flight_, owners.size());",
        "  in_flight_ -= std::min(in_flight_, owners.size() / 2);",
    ),
    "a reader is told of its first chunk alone": Bug(
        "loop", "handover/reader",
        "  is_due_ = false;\n  event_fd_.signal();",
        "  event_fd_.signal();",
    ),
    "a slot keeps what its last task left": Bug(
        "loop", "loop/prefix_sharing",
        "  memory_.release(sequence.slot());\n  const PrefixCache::Match",
        "  const PrefixCache::Match",
    ),
    "guesses that did not come true stay in their slot": Bug(
        "loop", "loop/decode_loop",
        "    if (n_true < n_held) backend_.forget",
        "    if (n_true + 1 < n_held) backend_.forget",
    ),
    "the draft model keeps guesses that did not come true": Bug(
        "loop", "loop/draft_model",
        "  const auto n_held = static_cast<int32_t>(n_same);\n"
        "  backend_.forget(sequence.slot(), {n_held, n_held - 1});",
        "",
    ),
    "what a failed batch has computed stays in its slots": Bug(
        "loop", "loop/decode_loop",
        "  backend_.forget(sequence.slot(), sequence.extent(sequence.n_computed()));",
        "",
    ),
    "a task that fails takes those beside it along": Bug(
        "loop", "loop/decode_loop",
        "    compute({items.begin(), half});\n    compute({half, items.end()});",
        "    for (const auto& item : items) item.sequence->finish(Finish::kError, status.message());",
    ),
    "what an owner has computed serves others": Bug(
        "loop", "loop/prefix_cache",
        "    if (entry->scope != scope) continue;",
        "    if (entry->scope.adapters != scope.adapters) continue;",
    ),
    "a slot is copied for whoever asks": Bug(
        "loop", "loop/slot_memory",
        "  return tokens.empty() || scope.owner != request.owner();",
        "  return tokens.empty() || scope.owner > 1000 * request.owner() + 1000;",
    ),
    "what is parked stays parked": Bug(
        "loop", "loop/scheduler",
        "  for (auto next = parked_.end(); next != ready;)",
        "  for (auto next = parked_.end() - 1; next > ready;)",
    ),
    "a slot that somebody waits for stays with a reader that nobody reads": Bug(
        "loop", "loop/scheduler",
        "    return sequence->is_paused() && waiting_.has_next({sequence->slot()});",
        "    return sequence->is_paused() && sequence->slot() < 0;",
    ),
    "a vector counts tokens that are read again twice": Bug(
        "loop", "loop/sequence",
        "  if (pooler_) pooler_->clear();",
        "",
    ),
    "one deadline is looked for, and no later one": Bug(
        "loop", "loop/time_limits",
        "      next_deadline_ = std::min(next_deadline_, std::max(sequence.deadline(), now + kDeadlineInterval));",
        "",
    ),
    "who waits for too long goes on waiting": Bug(
        "loop", "loop/time_limits",
        "  next_look_ = now + kLookInterval;\n  has_grace_ = false;",
        "  next_look_ = now + kLookInterval * 10000;\n  has_grace_ = false;",
        seed=60,
    ),
    "an idle slot keeps its memory": Bug(
        "loop", "loop/idle_slots",
        "    if (std::exchange(slot.is_in_use, false)) slot.last_use = now;",
        "    if (slot.is_in_use) slot.last_use = now;",
    ),
}  # fmt: skip


def plant(name: str) -> None:
    """Puts a bug into its Python module, which must not have been imported."""
    bug = BUGS[name]
    assert bug.module not in sys.modules, f"{bug.module} was imported before the bug was planted"
    sys.meta_path.insert(0, _Finder(bug))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._bug.module:
            return None
        return importlib.util.spec_from_file_location(name, self._bug.path, loader=_Loader(self._bug))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, bug: Bug) -> None:
        super().__init__(bug.module, str(bug.path))
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._bug.source(), str(self._bug.path), "exec")
