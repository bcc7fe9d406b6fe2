"""Defines the scripts that the shared queue runs in Redis, each of which is one step for everybody who watches.

A queue is three streams, one for each band of priorities, with the consumer group `fronts`. An entry has the fields

    c  id of the call, unique over all fronts      d  deadline in ms of Redis' clock; 0: none
    f  id of the front that accepted it            i  1 if its handler is idempotent
    t  deliveries that it may have                 k  its client's idempotency key, or nothing
    b  what to call, as corosrv.fleet.cluster.call_codec writes it; empty: it is in the key that `body` names

A front has a stream of its own, from which it reads the replies to the calls that it accepted, and what others want of
the calls that it runs. Beside an entry there is a mark, from just before its hand-over until it is finished:
`consumer|delivery`, and then `|sent` once a piece of its answer has gone to the accepting front.

The names of marks, bodies and front streams are put together here from their beginnings; all have the braces of one
namespace, which is one slot of a cluster.
"""

from __future__ import annotations

GROUP = "fronts"
MARK_MS = 24 * 3600 * 1000  # for which a mark stays if nobody finishes its entry
FRONT_MS = 300 * 1000  # for which the stream of a front stays that does not read it any more
DEAD_LETTERS = 1000  # entries that are kept in the stream of those that nobody could run
STRANGE_FIELDS = 64  # names and values that are kept of an entry there: those of a call are fewer

_CLOCK = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_FIELDS = """
local function fields_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end
"""

_IS_CALL = """
-- Whether a front has written an entry. Others may write what they like into a stream.
local function is_call(fields)
  return fields.c and fields.f and fields.b and tonumber(fields.d) and tonumber(fields.t)
    and not string.find(fields.c .. fields.f, '[^!-~]')
end
"""

_TELL = f"""
local function tell(stream, ...)
  redis.call('XADD', stream, '*', ...)
  redis.call('PEXPIRE', stream, {FRONT_MS})
end
"""

_WAITING = f"""
local function waiting_in(stream)
  local length = redis.call('XLEN', stream)
  if length == 0 then return 0 end
  local pending = redis.pcall('XPENDING', stream, '{GROUP}')
  if pending.err then return length end
  return math.max(length - pending[1], 0)
end
"""

_OWNER = f"""
local function delivery_of(stream, id)
  local pending = redis.pcall('XPENDING', stream, '{GROUP}', id, id, 1)
  if pending.err or not pending[1] then return nil, 0 end
  return pending[1][2], pending[1][4]
end
"""

_DROP = f"""
local function drop(stream, id, ...)
  local n = redis.call('XDEL', stream, id)
  redis.pcall('XACK', stream, '{GROUP}', id)
  if ... then redis.call('DEL', ...) end
  return n
end
"""

_SET_ASIDE = f"""
local function set_aside(stream, id, flat, dead_letters)
  local kept = {{unpack(flat, 1, math.min(#flat, {STRANGE_FIELDS}))}}
  redis.call('XADD', dead_letters, 'MAXLEN', '~', '{DEAD_LETTERS}', '*', 'stream', stream, 'id', id, unpack(kept))
end
"""

ENQUEUE = f"""{_CLOCK}{_WAITING}
-- KEYS: the streams of the bands, bell, body. ARGV: band, most that may wait, ms left (0: no limit), queue's name,
-- ms that the body stays, body (empty: it is in its field), fields
local waiting = waiting_in(KEYS[1]) + waiting_in(KEYS[2]) + waiting_in(KEYS[3])
if waiting >= tonumber(ARGV[2]) then return {{'full', waiting}} end
local deadline = '0'
if ARGV[3] ~= '0' then deadline = string.format('%.0f', now + ARGV[3]) end
local stream = KEYS[tonumber(ARGV[1])]
local is_new = redis.call('EXISTS', stream) == 0
if ARGV[6] ~= '' then redis.call('SET', KEYS[5], ARGV[6], 'PX', ARGV[5]) end
local id = redis.call('XADD', stream, '*', 'd', deadline, unpack(ARGV, 7))
if is_new then redis.call('XGROUP', 'CREATE', stream, '{GROUP}', '0') end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', '256', '*', 'q', ARGV[4])
return {{'queued', id}}
"""

PULL = f"""{_CLOCK}{_FIELDS}{_IS_CALL}{_WAITING}{_DROP}{_SET_ASIDE}
-- KEYS: epoch, then streams of the bands high, normal and low, as many of each. ARGV: consumer, entries wanted, those
-- of them that are to be low ones if there are any, ms to hold after a restart, beginning of the names of bodies, dead
-- letters. Returns, last, how many entries were no calls and are dead letters now.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local epoch = redis.call('HMGET', KEYS[1], 'run', 'until')
local hold = 0
if epoch[1] ~= run then
  -- This server is another than before, or has forgotten: fronts say first what they still run.
  -- One that knows of no epoch has lost everything, and nobody runs what it has.
  if epoch[1] then hold = tonumber(ARGV[4]) end
  redis.call('HSET', KEYS[1], 'run', run, 'until', string.format('%.0f', now + hold))
else
  hold = math.max(tonumber(epoch[2]) - now, 0)
end
local left, n_keys = tonumber(ARGV[2]), (#KEYS - 1) / 3
local entries, n_strange = {{}}, 0
local function read(first, last, limit)
  for i = first, last do
    if limit <= 0 then return end
    if redis.call('EXISTS', KEYS[i]) == 1 then
      local read_command = {{'XREADGROUP', 'GROUP', '{GROUP}', ARGV[1], 'COUNT', limit, 'STREAMS', KEYS[i], '>'}}
      local reply = redis.pcall(unpack(read_command))
      if type(reply) == 'table' and reply.err then
        if not string.find(reply.err, 'NOGROUP') then return end
        redis.call('XGROUP', 'CREATE', KEYS[i], '{GROUP}', '0')
        reply = redis.call(unpack(read_command))
      end
      if reply then
        for _, entry in ipairs(reply[1][2]) do
          local fields = fields_of(entry[2])
          if is_call(fields) then
            local body = fields.b
            if body == '' then body = redis.call('GET', ARGV[5] .. fields.c) or '' end
            table.insert(entries, {{i - 2, entry[1], 1, fields.c, fields.f, fields.d, body}})
          else
            set_aside(KEYS[i], entry[1], entry[2], ARGV[6])
            drop(KEYS[i], entry[1])
            n_strange = n_strange + 1
          end
          left, limit = left - 1, limit - 1
        end
      end
    end
  end
end
if hold == 0 then
  read(2 + 2 * n_keys, 1 + 3 * n_keys, math.min(tonumber(ARGV[3]), left))
  read(2, 1 + 3 * n_keys, left)
end
local waiting = {{}}
for i = 2, #KEYS do waiting[i - 1] = waiting_in(KEYS[i]) end
return {{run, math.ceil(hold), string.format('%.0f', now), entries, waiting, n_strange}}
"""

START = f"""{_CLOCK}{_FIELDS}{_OWNER}
-- KEYS: stream, mark. ARGV: id, consumer, delivery, 1 if it was claimed from another consumer
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])
if not found[1] then
  redis.pcall('XACK', KEYS[1], '{GROUP}', ARGV[1])
  return 'gone'
end
local deadline = tonumber(fields_of(found[1][2]).d)
if deadline > 0 and now >= deadline then return 'overdue' end
local owner = delivery_of(KEYS[1], ARGV[1])
if owner and owner ~= ARGV[2] then return 'other' end
if not owner then
  -- Redis has lost that it was delivered.
  redis.call('XCLAIM', KEYS[1], '{GROUP}', ARGV[2], '0', ARGV[1], 'RETRYCOUNT', ARGV[3], 'FORCE', 'JUSTID')
end
local mark = redis.call('GET', KEYS[2])
if mark and ARGV[4] ~= '1' then
  local other = string.match(mark, '^[^|]*')
  if other ~= ARGV[2] then
    -- It runs there, which Redis had forgotten. If that front is gone, its entry will be idle.
    redis.call('XCLAIM', KEYS[1], '{GROUP}', other, '0', ARGV[1], 'JUSTID')
    return 'other'
  end
end
redis.call('SET', KEYS[2], ARGV[2] .. '|' .. ARGV[3], 'PX', {MARK_MS})
return 'run'
"""

CHUNK = f"""{_TELL}
-- KEYS: mark, stream of the accepting front. ARGV: consumer, delivery, call, payload
local mark = redis.call('GET', KEYS[1])
if not mark then return 0 end
local mine = ARGV[1] .. '|' .. ARGV[2]
if mark ~= mine and mark ~= mine .. '|sent' then return 0 end
if mark == mine then redis.call('SET', KEYS[1], mine .. '|sent', 'KEEPTTL') end
tell(KEYS[2], 'c', ARGV[3], 'k', 'chunk', 'n', ARGV[2], 'f', ARGV[1], 'b', ARGV[4])
return 1
"""

FINISH = f"""{_TELL}{_DROP}
-- KEYS: stream, mark, stream of the accepting front, body. ARGV: id, consumer, delivery, call, pieces sent, payload
-- Tells it also if the entry is not there: Redis may have forgotten it, while its client still waits.
local n = drop(KEYS[1], ARGV[1], KEYS[2], KEYS[4])
tell(KEYS[3], 'c', ARGV[4], 'k', 'end', 'n', ARGV[3], 'f', ARGV[2], 'm', ARGV[5], 'b', ARGV[6])
return n
"""

RELEASE = f"""{_OWNER}
-- KEYS: stream, mark, bell. ARGV: id, consumer, ms after which entries are claimed, queue's name
if delivery_of(KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('XCLAIM', KEYS[1], '{GROUP}', ARGV[2], '0', ARGV[1], 'IDLE', ARGV[3], 'JUSTID')
redis.call('XADD', KEYS[3], 'MAXLEN', '~', '256', '*', 'q', ARGV[4], 'k', 'idle')
return 1
"""

WITHDRAW = f"""{_TELL}{_DROP}
-- KEYS: stream, mark, body. ARGV: id, call, beginning of the names of front streams. Returns 1 if it may have run.
local mark = redis.call('GET', KEYS[2])
drop(KEYS[1], ARGV[1], KEYS[2], KEYS[3])
if not mark then return 0 end
tell(ARGV[3] .. string.match(mark, '^[^|]*'), 'c', ARGV[2], 'k', 'cancel')
return 1
"""

RENEW = f"""{_OWNER}
-- KEYS: stream of each entry. ARGV: consumer, then the id of each. Returns the positions of those that it has lost.
local lost = {{}}
for i = 1, #KEYS do
  local id = ARGV[i + 1]
  if delivery_of(KEYS[i], id) == ARGV[1] then
    redis.call('XCLAIM', KEYS[i], '{GROUP}', ARGV[1], '0', id, 'JUSTID')
  else
    table.insert(lost, i - 1)
  end
end
return lost
"""

REASSERT = f"""
-- KEYS: stream, mark. ARGV: id, consumer, delivery. After a restart: says again what this front runs.
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
redis.pcall('XGROUP', 'CREATE', KEYS[1], '{GROUP}', '0')
redis.call('XCLAIM', KEYS[1], '{GROUP}', ARGV[2], '0', ARGV[1], 'RETRYCOUNT', ARGV[3], 'FORCE', 'JUSTID')
local mine = ARGV[2] .. '|' .. ARGV[3]
if redis.call('GET', KEYS[2]) ~= mine .. '|sent' then redis.call('SET', KEYS[2], mine, 'PX', {MARK_MS}) end
return 1
"""

CLAIM = f"""{_CLOCK}{_FIELDS}{_IS_CALL}{_TELL}{_OWNER}{_DROP}{_SET_ASIDE}
-- KEYS: stream, dead letters. ARGV: consumer, ms of idleness, cursor, count, beginnings of the names of marks, bodies
-- and front streams, payloads of the two refusals: lost after its start, delivered too often
local reply = redis.pcall('XAUTOCLAIM', KEYS[1], '{GROUP}', ARGV[1], ARGV[2], ARGV[3], 'COUNT', ARGV[4])
if reply.err then return {{'0-0', string.format('%.0f', now), {{}}}} end
local entries = {{}}
for _, entry in ipairs(reply[2]) do
  local id = entry and entry[1] -- Redis 6.2 has nothing in the place of a deleted one
  local fields = id and fields_of(entry[2])
  if id and not is_call(fields) then
    set_aside(KEYS[1], id, entry[2], KEYS[2])
    drop(KEYS[1], id)
  elseif id then
    local mark_key, body_key = ARGV[5] .. fields.c, ARGV[6] .. fields.c
    local mark = redis.call('GET', mark_key)
    local _, delivery = delivery_of(KEYS[1], id)
    local refusal = nil
    if mark and (fields.i ~= '1' or string.find(mark, '|sent', 1, true)) then
      refusal = ARGV[8]
    elseif delivery > tonumber(fields.t) then
      refusal = ARGV[9]
      set_aside(KEYS[1], id, entry[2], KEYS[2])
    end
    if refusal then
      drop(KEYS[1], id, mark_key, body_key)
      tell(ARGV[7] .. fields.f, 'c', fields.c, 'k', 'end', 'n', delivery, 'f', ARGV[1], 'm', '0', 'b', refusal)
    else
      local body = fields.b
      if body == '' then body = redis.call('GET', body_key) or '' end
      table.insert(entries, {{0, id, delivery, fields.c, fields.f, fields.d, body}})
    end
  end
end
return {{reply[1], string.format('%.0f', now), entries}}
"""

CHECK = f"""{_TELL}
-- KEYS: stream of the accepting front, then the stream of each entry. ARGV: for each entry its id and its call.
-- What is missing is told through the front's own stream, behind the replies that are in it already.
for i = 2, #KEYS do
  local id, call = ARGV[2 * i - 3], ARGV[2 * i - 2]
  if #redis.call('XRANGE', KEYS[i], id, id) == 0 then tell(KEYS[1], 'c', call, 'k', 'missing') end
end
return #KEYS - 1
"""

OWNED = f"""{_FIELDS}
-- KEYS: stream. ARGV: id after which to look (exclusive), front, count. Returns the id to go on from (empty: the end)
-- and the ids and calls of the entries that this front accepted.
local page = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[3])
local owned = {{}}
for _, entry in ipairs(page) do
  local fields = fields_of(entry[2])
  if fields.f == ARGV[2] and fields.c then table.insert(owned, {{entry[1], fields.c}}) end
end
local last = ''
if #page == tonumber(ARGV[3]) then last = page[#page][1] end
return {{last, owned}}
"""

TELL = f"""{_TELL}
-- KEYS: stream of a front. ARGV: fields. Tells a front something.
tell(KEYS[1], unpack(ARGV))
return 1
"""

TRIM = f"""
-- KEYS: own stream. ARGV: id of the last message that was read. Forgets those before.
local n = redis.call('XTRIM', KEYS[1], 'MINID', ARGV[1])
redis.call('PEXPIRE', KEYS[1], {FRONT_MS})
return n
"""
