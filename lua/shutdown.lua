-- shutdown: for everyone: writers are refused, waits end; a consuming buffer gives out what is left first, if asked to.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  drain         0|1    give out what is left (a buffer that does not consume is shut at once)
-- Returns  each after the word what became of open_number: applied, never or -
--   OK state                          draining or shut
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   config, waiters, waiting
-- Publishes  wake to every waiter; draining, shut to events
-- @include request
local again, became, time = accept(false, false)
if again then return again end
local drain = ARGV[5] == '1' and settings.consume and count('sampleable_size') + count('leased') > 0
if settings.state ~= 'shut' and not drain then
  shut(time, '0')
  settings.state = 'shut'
elseif settings.state == 'open' then
  redis.call('HSET', config, 'state', 'draining', 'drained', '0')
  redis.call('PUBLISH', events, 'draining')
  settings.state = 'draining'
  wake_all(time, 'w') -- for whom this is the end
end
return reply('shutdown', became, {'OK', settings.state}, time)
