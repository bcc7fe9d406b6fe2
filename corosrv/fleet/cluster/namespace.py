"""Names all that the servers of one namespace keep in Redis, and holds the scripts that share permits and limits.

With one script fronts take, renew and give back permits. A *resource* is what permits are for: an upstream. Its hash
has a record for each front, in msgpack:

    at, held, used   when the front last said so (ms of Redis' clock), the permits that it holds, those that calls use
    n, band, share, stamp   how many of its calls wait; of the first one its band, its key, and when it came
    weight, uses     the weight of that key, and how many calls of each key the front runs on the resource
    offers           how often it was told of a permit for it since it was last heard

A front tells its state as a whole, so that a run that is lost or repeated does no harm, and no other front changes
what one holds. It numbers its runs: one that reaches Redis after a later one, as from a connection that was given up,
changes nothing, also after the front has left. The order of those that wait is tier, then the permits that their key
has in all fronts over its weight, then priority class, then arrival by a number that each run counts up. A band is tier
and class. Redis' clock is used for leases alone.

A state that was lost, by another run of Redis, by its keys' deletion or by a pause in which nobody was heard, grants
nothing for one lease, in which all fronts have said what they hold. A front that has only just started, and so cannot
know whether others hold permits, finds that out in one beat.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from corosrv.contracts.jobs.terms import CLASSES

_LONGEST_PART = 200  # bytes of one part as it stands; a longer one is hashed


class KeyNames:
    """Makes the names of all that the servers of one namespace keep in Redis.

    The braces around the namespace put all of it into one slot of a Redis cluster, so that scripts may use several.
    """

    def __init__(self, namespace: str) -> None:
        self._prefix = f"corosrv:{{{namespace}}}:"

    def name(self, kind: str, *parts: str) -> str:
        """Returns the name of one kind of thing, whatever characters its parts have; names of different parts differ.

        A part of more than 200 bytes stands there as its hash.
        """
        return self._prefix + ":".join((kind, *map(_part, parts)))

    def pattern(self, kind: str) -> str:
        """Returns what SCAN matches all keys of one kind with that have parts."""
        return f"{self._prefix}{kind}:*"


def _part(text: str) -> str:
    escaped = quote(text, safe=" !#$&'()+,./;<=>@^_`{|}~-", errors="surrogatepass")
    if len(escaped) <= _LONGEST_PART:
        return escaped
    return "%" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


BEAT = 3.0  # seconds between two times at which a front says what it holds, and how many answers it makes
LEASE_MS = 9000  # after which a front that says nothing has lost its permits, and its answers are over
MAX_OFFERS = 8  # in a row that a front may leave unanswered before its turn passes to others
LATEST_MS = 3_600_000  # in which a run that was held up on its way may arrive

SYNC = (
    """
-- KEYS: the hash of the namespace, the number of the front's last run, then a hash for each resource. ARGV: front, the
-- epoch that it knows (or nothing), lease in ms, beat in ms, beginning of the channels of fronts, calls that wait there
-- in all (-1: it ends), msgpack: for each resource {permits that there are, held, used, n, band, share, weight, stamp,
-- uses}, and n is -1 of one it leaves; the number of this run.
-- Returns epoch, stamp, ms to hold, and each resource {held, whether another goes first, its part if all want some};
-- the error STALE, with nothing changed, after a run of the same front with this number or a later one.
if tonumber(ARGV[8]) <= (tonumber(redis.call('GET', KEYS[2]) or 0) or 0) then
  return redis.error_reply('STALE a later run of this front came first')
end
redis.call('SET', KEYS[2], ARGV[8], 'PX', LATEST_MS)
local me, lease, channel = ARGV[1], tonumber(ARGV[3]), ARGV[5]
local waiting = tonumber(ARGV[6])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local hub = redis.call('HMGET', KEYS[1], 'run', 'last', 'until', 'epoch')
local last, hold_until = tonumber(hub[2] or now), tonumber(hub[3] or 0)
local gap = last > 0 and now - last or 0  -- 0: all have left, and hold nothing
local epoch = hub[4]
if hub[1] ~= run or gap > lease / 2 then
  if last > 0 then hold_until = now + (ARGV[2] == '' and tonumber(ARGV[4]) or lease) end
  epoch = run .. ':' .. string.format('%.0f', now)
  redis.call('HSET', KEYS[1], 'run', run, 'epoch', epoch)
end
hold_until = math.min(hold_until, now + lease)  -- the clock was put back
redis.call('HSET', KEYS[1], 'last', string.format('%.0f', now), 'until', string.format('%.0f', hold_until))
local stamp = redis.call('HINCRBY', KEYS[1], 'stamp', 1)
local hold = math.max(hold_until - now, 0)

local numbers = {'at', 'held', 'used', 'n', 'band', 'weight', 'stamp', 'offers'}
local function is_record(record)  -- others may write to Redis, too
  if type(record) ~= 'table' or type(record.uses) ~= 'table' or type(record.share) ~= 'string' then return false end
  for _, name in ipairs(numbers) do
    if type(record[name]) ~= 'number' then return false end
  end
  return true
end

local function read(key)
  local others, own = {}, nil
  local flat = redis.call('HGETALL', key)
  for i = 1, #flat, 2 do
    local is_read, record = pcall(cmsgpack.unpack, flat[i + 1])
    if not is_read or not is_record(record) or now - record.at > lease then
      if flat[i] ~= me then redis.call('HDEL', key, flat[i]) end
    elseif flat[i] == me then
      own = record
    else
      if record.at > now then  -- the clock was put back
        record.at = now
        redis.call('HSET', key, flat[i], cmsgpack.pack(record))
      end
      record.front = flat[i]
      others[#others + 1] = record
    end
  end
  return others, own
end

local function tell(front, resource)  -- returns whether the front listens
  return redis.call('PUBLISH', channel .. front, resource) > 0
end

local function first_of(claims, totals)
  local best, best_rank
  for _, claim in ipairs(claims) do
    if claim.n > 0 then
      local share = (totals[claim.share] or 0) / claim.weight
      local rank = {math.floor(claim.band / CLASSES), share, claim.band, claim.stamp}
      local place = 1
      while best and place < 4 and rank[place] == best_rank[place] do place = place + 1 end
      if not best or rank[place] < best_rank[place] then best, best_rank = claim, rank end
    end
  end
  return best
end

local replies, n_left_behind = {epoch, stamp, hold}, 0
for place, asked in ipairs(cmsgpack.unpack(ARGV[7])) do
  local key = KEYS[place + 2]
  local cap, held, used, n = asked[1], asked[2], asked[3], asked[4]
  local others, own = read(key)
  local taken, n_before = 0, own and own.n or 0
  for _, other in ipairs(others) do taken = taken + other.held end
  -- What its calls use it has in any case; of what it holds beside, a lease that was over may have given some away.
  local mine = own and math.max(held, used) or math.max(used, math.min(held, cap - taken))
  local totals, claims = {}, {}
  for caller, count in pairs(asked[9]) do totals[caller] = (totals[caller] or 0) + count end
  for _, other in ipairs(others) do
    for caller, count in pairs(other.uses) do totals[caller] = (totals[caller] or 0) + count end
    if other.n > 0 and other.offers < MAX_OFFERS then claims[#claims + 1] = other end
  end
  local record = {at = now, held = mine, used = used, n = math.max(n, 0), band = asked[5], share = asked[6],
    weight = asked[7], stamp = asked[8] > 0 and asked[8] or stamp, uses = asked[9], offers = 0, front = me}
  if n > 0 then claims[#claims + 1] = record end
  local free = cap - taken - mine
  if n < 0 then free = free + mine end
  local told = {}
  while hold == 0 and free > 0 do
    local best, mine_before = first_of(claims, totals), mine
    if not best then break end
    if best == record then
      if waiting > 0 then mine, waiting = mine + 1, waiting - 1 end
    elseif told[best.front] == nil then
      told[best.front] = tell(best.front, key)
      best.offers = best.offers + 1
      redis.call('HSET', key, best.front, cmsgpack.pack(best))
    end
    if best ~= record and not told[best.front] then
      best.n = 0  -- nobody hears it there
    elseif best == record and mine == mine_before then
      best.n = 0  -- its calls wait for several resources, and each has a permit by now
    else
      best.n = best.n - 1
      free = free - 1
      totals[best.share] = (totals[best.share] or 0) + 1
    end
  end
  local rivals, part = 0, math.floor(cap / (#others + 1))
  local next_one = first_of(claims, totals)
  if next_one and next_one ~= record then rivals = 1 end
  for _, is_told in pairs(told) do
    if is_told then rivals = 1 end
  end
  if hold == 0 and rivals == 0 and n >= 0 and mine < part then
    local more = math.max(math.min(free, part - mine), 0)
    mine, free = mine + more, free - more
  end
  record.held, record.front = mine, nil
  if n < 0 then
    redis.call('HDEL', key, me)
    n_left_behind = n_left_behind + #others
  else
    redis.call('HSET', key, me, cmsgpack.pack(record))
    redis.call('PEXPIRE', key, lease * 10)
  end
  for _, other in ipairs(others) do
    local has_idle = other.held > other.used
    local wants = record.n > 0 and (n_before == 0 or has_idle)
    local evens_out = (mine < part and has_idle and other.held > part) or (free > 0 and other.held < part)
    if hold == 0 and told[other.front] == nil and (wants or evens_out or not own) then tell(other.front, key) end
  end
  replies[#replies + 1] = {mine, rivals, part}
end
if waiting < 0 and n_left_behind == 0 then redis.call('HSET', KEYS[1], 'last', '0') end
return replies
""".replace("MAX_OFFERS", str(MAX_OFFERS))
    .replace("LATEST_MS", str(LATEST_MS))
    .replace("CLASSES", str(CLASSES))
)

CHARGE = """
-- KEYS: the hash of one API key. ARGV: server, the number of this run, lease in ms, msgpack: {limits {requests and
-- tokens a minute, tokens a day, answers at once; -1: none}, what the server used in all {requests, tokens, tokens of
-- its day, that day, answers that run}, as much of it as it knows to be counted here {requests, tokens, tokens of the
-- day}, what it believes is used now {same}, asks {requests, tokens of the prompt, of the answer, answers}, the epoch
-- that it knows}.
-- Returns msgpack: {ms of the clock, requests, tokens, tokens of the day that are used, the day, answers of other
-- servers, for each ask 1 where it was granted and 0 where a limit refuses it, the epoch}; the error STALE after a run
-- of the same server with this number or a later one.
-- The hash has `used`: {requests, their time, tokens, their time, tokens of the day, the day, the epoch}, and for each
-- server {number, requests, tokens, tokens of the day, the day, answers, time}. An epoch begins where nothing is known:
-- what servers believe counts then, once for each. In one that goes on others may have given back since.
local me, run, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limits, said, counted, believed, asks, epoch = unpack(cmsgpack.unpack(ARGV[4]))
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local today = math.floor(now / DAY)

local function numbers(text, n)  -- others may write to Redis, too
  local is_read, record = pcall(cmsgpack.unpack, text)
  if not is_read or type(record) ~= 'table' then return nil end
  for place = 1, n do
    local number = record[place]
    if type(number) ~= 'number' or not (math.abs(number) < 2^53) then return nil end
  end
  return record
end

local used, own, elsewhere = nil, nil, 0
local flat = redis.call('HGETALL', KEYS[1])
for place = 1, #flat, 2 do
  local name, text = flat[place], flat[place + 1]
  if name == 'used' then
    used = numbers(text, 7)
  elseif name == me then
    own = numbers(text, 7)
  else
    local other = numbers(text, 7)
    if not other or now - other[7] > lease then
      redis.call('HDEL', KEYS[1], name)
    else
      elsewhere = elsewhere + other[6]
      if other[7] > now then  -- the clock was put back
        other[7] = now
        redis.call('HSET', KEYS[1], name, cmsgpack.pack(other))
      end
    end
  end
end
if own and own[1] >= run then return redis.error_reply('STALE a later run of this server came first') end
used = used or {0, now, 0, now, 0, today, now}
local is_new = used[7] ~= epoch

for place = 1, 2 do  -- what comes back in time
  local level, at = 2 * place - 1, 2 * place
  if limits[place] > 0 then
    used[level] = math.max(used[level] - math.max(now - used[at], 0) * limits[place] / MINUTE, 0)
    used[at] = now
  end
  local before = own and own[place + 1] or counted[place]
  used[level] = math.max(used[level] + said[place] - before, 0)
  if is_new then used[level] = math.max(used[level], believed[place]) end
end
if used[6] ~= today then used[5], used[6] = 0, today end
local of_day = 0
if said[4] == today then
  of_day = said[3]
  local before = counted[3]
  if own then before = own[5] == today and own[4] or 0 end
  used[5] = math.max(used[5] + of_day - before, 0)
  if is_new then used[5] = math.max(used[5], believed[3]) end
end

local here, requests, tokens = said[5], 0, 0
local function lacks(limit, taken, asked) return limit >= 0 and taken + asked > limit + 1e-6 end
local verdicts = {}
for place, ask in ipairs(asks) do
  local prompt, whole = ask[2], ask[2] + ask[3]
  local is_refused = (ask[4] > 0 and lacks(limits[4], elsewhere + here, ask[4]))
    or (ask[1] > 0 and lacks(limits[1], used[1], ask[1]))
    or (whole > 0 and lacks(limits[2], used[3], math.max(prompt, math.min(whole, limits[2]))))
    or (whole > 0 and lacks(limits[3], used[5], math.max(prompt, math.min(whole, limits[3]))))
  if not is_refused then
    here, requests, tokens = here + ask[4], requests + ask[1], tokens + whole
    used[1], used[3], used[5] = used[1] + ask[1], used[3] + whole, used[5] + whole
  end
  verdicts[place] = is_refused and 0 or 1
end

local record = {run, said[1] + requests, said[2] + tokens, of_day + tokens, today, here, now}
redis.call('HSET', KEYS[1], 'used', cmsgpack.pack(used), me, cmsgpack.pack(record))
local left = math.max(lease, MINUTE, redis.call('PTTL', KEYS[1]))  -- when nobody believes that anything is used
if limits[1] > 0 then left = math.max(left, used[1] * MINUTE / limits[1]) end
if limits[2] > 0 then left = math.max(left, used[3] * MINUTE / limits[2]) end
if limits[3] > 0 then left = math.max(left, (today + 1) * DAY - now) end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(left)))
return cmsgpack.pack({now, used[1], used[3], used[5], today, elsewhere, verdicts, used[7]})
""".replace("MINUTE", "60000").replace("DAY", "86400000")
