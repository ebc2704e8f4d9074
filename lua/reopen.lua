-- reopen: a buffer that was shut down is open again, with what it holds.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- Returns  each after the word what became of open_number: applied, never or -
--   OK                                open, or was
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   config, waiters, waiting
-- Publishes  open to events; wake to every waiter
-- @include request
local again, became, time = accept(false, false)
if again then return again end
if settings.state == 'draining' then -- a shutdown that is over: waits of before end with it
  settings.shutdowns = redis.call('HINCRBY', config, 'shutdowns', 1)
  wake_all(time)
end
if settings.state ~= 'open' then
  if settings.state == 'draining' or settings.drained == '1' then limit.begin() end -- draws were free meanwhile
  redis.call('HSET', config, 'state', 'open', 'drained', '0')
  redis.call('PUBLISH', events, 'open')
  settings.state = 'open'
end
return reply('reopen', became, {'OK'}, time)
