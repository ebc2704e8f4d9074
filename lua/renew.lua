-- renew: keeps the hold of a lane whose batch is still being fetched.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- Returns  each after a -
--   OK                                held for another 60 s
--   LAPSED                            the hold has ended
--   DAMAGED key found expected        the stream of records is missing
--   GONE                              another epoch
-- Writes   holds, counters (clock)
-- @include hold
local epoch, lane = ARGV[1], ARGV[2]
local refused = enter(epoch)
if refused then return refused end
redis.call('DEL', none)
local time = now()
commit()
if not redis.call('ZSCORE', holds, lane) then return {'LAPSED', '-'} end
redis.call('ZADD', holds, int(time + HOLD_US), lane)
return {'OK', '-'}
