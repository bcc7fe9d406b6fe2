"""Holds scripts that Redis runs for the records of idempotency keys.

A record is a hash: `digest` of what was asked, `owner`, who runs it, and `answer`, once there is one. Its expiry is the
lease while it runs, and the lifetime of the answer after that. For each caller a sorted set knows the answered records
by the time of their end, and a hash their sizes, with the sum under the empty name.
"""

from __future__ import annotations

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
