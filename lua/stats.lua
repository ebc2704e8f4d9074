-- stats: every counter and the state, after what ran out was reclaimed.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- Returns  each after a -
--   OK name value…                    counters as exact text; state, capacity, waiters, lanes, holds, leases, writers, and
--                                     idle_us: since the last write, or -1;
--                                     rate_limiter, limiter: see limit.lua; blocked: of each of the first 100 that wait: side,
--                                     need, take, microseconds, 1 if it has its turn, channel; ; between them
--                                     lag: see lag.lua; by_writer: name, written, stale, evicted of each writer;
--                                     whole: of the weights, see weighted.lua; max_priority: the largest ever set, or empty
--   DAMAGED key found expected        the stream of records is missing
--   GONE                              another epoch
-- Writes   counters (clock), what a hold or a lane that ran out had kept
-- @include request
-- @include draw
-- @include lag
local BLOCKED = 100

local function blocked(time)
  local out = {}
  for i, w in ipairs(read_line(time)) do
    if i > BLOCKED then break end
    local turn = w.turn > 0 and '1' or '0'
    out[i] = table.concat({w.side, int(w.need), int(w.take), int(time - w.since), turn, w.channel}, ' ')
  end
  return table.concat(out, ';')
end

local refused = enter(epoch)
if refused then return refused end
redis.call('DEL', none)
local time = now()
reclaim(time)
expire_lanes(time)
commit()
local out = redis.call('HGETALL', counters)
table.insert(out, 1, 'OK')
table.insert(out, 2, '-')
local idle, alive = liveness(time)
local _, whole = weighted.odds({})
local facts = {whole = whole, lag = lags(), by_writer = share.rows(),
               max_priority = weight.is_used() and priority.largest() or '', idle_us = idle, writers = alive,
               state = settings.state, capacity = int(settings.capacity), waiters = int(redis.call('ZCARD', waiters)),
               lanes = int(redis.call('ZCARD', lanes)), holds = int(redis.call('ZCARD', holds)),
               leases = int(redis.call('ZCARD', leases)), limiter = limit.word(), blocked = blocked(time),
               rate_limiter = redis.call('HGET', config, 'rate_limiter') or 'None'}
for name, value in pairs(facts) do
  out[#out + 1], out[#out + 2] = name, value
end
return out
