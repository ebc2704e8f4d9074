-- pace: another rate limiter, or none, from now on. What is there counts as if it had come under it; nobody owes anything.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  rate_limiter  text   what is shown of it
-- ARGV[6]  law           text   see include/limit.lua
-- Returns  each after the word what became of open_number: applied, never or -
--   OK                                done
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   config, counters, waiters, waiting
-- Publishes  wake to every waiter
-- @include request
local again, became, time = accept(false, false)
if again then return again end
redis.call('HSET', config, 'rate_limiter', ARGV[5], 'law', ARGV[6])
settings.law, limit.law = ARGV[6], limit.parse(ARGV[6])
limit.begin()
for _, w in ipairs(read_line(time)) do tell(w, 'wake') end -- what one needs may never come under the new one
return reply('pace', became, {'OK'}, time)
