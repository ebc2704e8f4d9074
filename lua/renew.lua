-- renew: keeps alive what would run out: the hold of a lane whose batch is still being fetched, the leases of a reader.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2..]  name        text   lanes with a hold, and leases
-- Returns  each after a -
--   OK ended…                         the names of those that have ended before
--   DAMAGED key found expected        the stream of records is missing
--   GONE                              another epoch
-- Writes   holds, leases, counters (clock)
-- @include lease
local refused = enter(ARGV[1])
if refused then return refused end
redis.call('DEL', none)
local time, out = now(), {'OK', '-'}
commit()
for i = 2, #ARGV do
  local text = redis.call('HGET', leased, ARGV[i])
  if text then
    redis.call('ZADD', leases, int(time + tonumber(text:match('^%d+'))), ARGV[i])
  elseif redis.call('ZSCORE', holds, ARGV[i]) then
    redis.call('ZADD', holds, int(time + HOLD_US), ARGV[i])
  else
    out[#out + 1] = ARGV[i]
  end
end
return out
