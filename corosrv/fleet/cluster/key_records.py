"""Keeps the answers of requests with an Idempotency-Key in Redis, for all fronts. Each step is a script in Redis.

A record is a hash: `digest` of what was asked, `owner`, who runs it, and `answer`, once there is one. Its expiry is the
lease while it runs, and the lifetime of the answer after that. For each caller a sorted set knows the answered records
by the time of their end, and a hash their sizes, with the sum under the empty name.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque

import gevent
import gevent.event

from corosrv.base.errors import CorosrvError, KeyReused
from corosrv.contracts.idempotency import still_running
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.namespace import KeyNames

IS_NEW, IS_RUNNING, IS_OTHER, IS_ANSWERED = range(4)
RECORD_BYTES = 1024  # that a record takes besides its answer, about

# KEYS: record. ARGV: digest, owner, lease in ms.
BEGIN = f"""
local digest, answer = unpack(redis.call('HMGET', KEYS[1], 'digest', 'answer'))
if not digest then
  redis.call('HSET', KEYS[1], 'digest', ARGV[1], 'owner', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {{{IS_NEW}, ''}}
end
if digest ~= ARGV[1] then return {{{IS_OTHER}, ''}} end
if not answer then return {{{IS_RUNNING}, ''}} end
return {{{IS_ANSWERED}, answer}}
"""

# KEYS: records. ARGV: lease in ms, then owner and digest of each record.
RENEW = """
for i, record in ipairs(KEYS) do
  local owner = redis.call('HGET', record, 'owner')
  if not owner then redis.call('HSET', record, 'digest', ARGV[2 * i + 1], 'owner', ARGV[2 * i]) end
  if not owner or owner == ARGV[2 * i] then redis.call('PEXPIRE', record, ARGV[1]) end
end
"""

# KEYS: record. ARGV: owner.
DROP = """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

# KEYS: record, index, sizes. ARGV: owner, digest, answer, lifetime in ms, most bytes of the caller.
FINISH = f"""
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local size = #ARGV[3] + {RECORD_BYTES}
local sum = tonumber(redis.call('HGET', KEYS[3], '') or '0')
local function forget(record)
  sum = sum - tonumber(redis.call('HGET', KEYS[3], record) or '0')
  redis.call('HDEL', KEYS[3], record)
  redis.call('ZREM', KEYS[2], record)
end
forget(KEYS[1])
while true do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  if not oldest[1] then break end
  local is_over = tonumber(oldest[2]) + tonumber(ARGV[4]) <= now
  if not is_over and sum + size <= tonumber(ARGV[5]) then break end
  forget(oldest[1])
  redis.call('DEL', oldest[1])
end
if size > tonumber(ARGV[5]) then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'digest', ARGV[2], 'answer', ARGV[3])
  redis.call('HDEL', KEYS[1], 'owner')
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  redis.call('ZADD', KEYS[2], now, KEYS[1])
  redis.call('HSET', KEYS[3], KEYS[1], size)
  sum = sum + size
end
redis.call('HSET', KEYS[3], '', sum)
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('PEXPIRE', KEYS[3], ARGV[4])
return 1
"""


log = logging.getLogger("corosrv.cluster")

LEASE = 10.0  # seconds after which the key of a front that died is free
RENEWAL = 3.0  # seconds between two renewals of the leases of calls that run
MAX_ANSWER = 8 << 20  # bytes of an answer; a larger one is kept by its own front alone
MAX_PENDING = 64 << 20  # bytes of answers that wait to be written
_RENEW_AT_ONCE = 100  # leases in one script


class KeyRecords:
    """Keeps records of keys within `max_bytes` for each caller, the oldest going first; see SharedRecords.

    A record is leased to the front that runs its call, which renews the lease: when that front dies the key is free
    LEASE seconds later. Only begin() waits; a greenlet writes what finish() and drop() were told. Belongs to the hub's
    thread.
    """

    def __init__(self, client: RedisClient, names: KeyNames, max_bytes: int, lifetime: float) -> None:
        """`lifetime`: seconds for which an answer is kept."""
        self._client = client
        self._names = names
        self._max_bytes = max_bytes
        self._lifetime = lifetime
        self._begin = client.script(BEGIN)
        self._renew = client.script(RENEW)
        self._finish = client.script(FINISH)
        self._drop = client.script(DROP)
        self._running: dict[str, LeasedClaim] = {}  # by owner
        self._pending: deque[tuple[LeasedClaim, bytes | None]] = deque()
        self._n_pending_bytes = 0
        self._wake = gevent.event.Event()
        self._greenlet: gevent.Greenlet | None = None

    def begin(self, caller: str, key: str, digest: bytes) -> bytes | LeasedClaim | None:
        """Returns what SharedRecords.begin() does. Asks Redis, and waits for its answer."""
        claim = LeasedClaim(self, self._names.name("record", caller, key), caller, digest)
        try:
            status, answer = self._begin.run([claim.record], [digest, claim.owner, int(LEASE * 1000)])
        except CorosrvError as error:
            log.debug("a request with an Idempotency-Key is not shared: %s", error)
            return None
        if status == IS_ANSWERED:
            return bytes(answer)
        if status == IS_RUNNING:
            raise still_running()
        if status == IS_OTHER:
            raise KeyReused
        self._running[claim.owner] = claim
        return claim

    # The writing greenlet.

    def start(self) -> None:
        """Begins to renew leases, and to write."""
        self._greenlet = gevent.spawn(self._run)

    def close(self) -> None:
        """Writes what is pending if Redis answers, and ends."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None
            self.write()

    def _run(self) -> None:
        due = time.monotonic() + RENEWAL
        while True:
            self._wake.clear()
            self._wake.wait(max(due - time.monotonic(), 0))
            try:
                self.write()
                if time.monotonic() >= due:
                    due = time.monotonic() + RENEWAL
                    self.renew()
            except Exception:
                log.exception("the records of Idempotency-Keys failed")

    def write(self) -> None:
        """Writes the ends of calls, in their order. What cannot be written is lost: its lease will end."""
        while self._pending:
            claim, answer = self._pending.popleft()
            self._n_pending_bytes -= len(answer or b"")
            try:
                if answer is None:
                    self._drop.run([claim.record], [claim.owner])
                else:
                    self._keep(claim, answer)
            except CorosrvError as error:
                log.debug("the end of a request with an Idempotency-Key is not shared: %s", error)

    def renew(self) -> None:
        """Renews the leases of calls that run, and makes them anew if Redis has lost them."""
        for claim in [claim for claim in self._running.values() if claim.is_abandoned]:
            claim.drop()
        claims = list(self._running.values())
        for start in range(0, len(claims), _RENEW_AT_ONCE):
            batch = claims[start : start + _RENEW_AT_ONCE]
            arguments = [word for claim in batch for word in (claim.owner, claim.digest)]
            try:
                self._renew.run([claim.record for claim in batch], [int(LEASE * 1000), *arguments])
            except CorosrvError as error:
                log.debug("leases of Idempotency-Keys are not renewed: %s", error)
                return

    def _keep(self, claim: LeasedClaim, answer: bytes) -> None:
        index = self._names.name("records", claim.caller)
        sizes = self._names.name("record-sizes", claim.caller)
        limits = [int(self._lifetime * 1000), self._max_bytes]
        self._finish.run([claim.record, index, sizes], [claim.owner, claim.digest, answer, *limits])

    # For claims.

    def end(self, claim: LeasedClaim, answer: bytes | None) -> None:
        """Writes the end of a call to Redis, with its answer or without. Does nothing for a call that has ended."""
        if self._running.pop(claim.owner, None) is None:
            return
        if answer is not None and (len(answer) > MAX_ANSWER or self._n_pending_bytes + len(answer) > MAX_PENDING):
            answer = None
        self._n_pending_bytes += len(answer or b"")
        self._pending.append((claim, answer))
        self._wake.set()


class LeasedClaim:
    """The right to answer the first call under a key, as long as its front lives; see SharedClaim."""

    __slots__ = ("_records", "caller", "digest", "is_abandoned", "owner", "record")

    def __init__(self, records: KeyRecords, record: str, caller: str, digest: bytes) -> None:
        self._records = records
        self.record = record
        self.caller = caller
        self.digest = digest
        self.owner = secrets.token_hex(8)
        self.is_abandoned = False

    def finish(self, answer: bytes) -> None:
        self._records.end(self, answer)

    def drop(self) -> None:
        self._records.end(self, None)

    def abandon(self) -> None:
        self.is_abandoned = True
