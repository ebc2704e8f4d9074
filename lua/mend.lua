-- mend: the copy that a repair built takes the place of what the buffer holds; the fence goes.
-- KEYS     the list of include/keys.lua, and the same list of the copy
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  id            text   of the repair, which has fenced the buffer
-- ARGV[3]  copy          text   the epoch of the copy
-- ARGV[4]  high          int    no index up to this one is given to a new record
-- ARGV[5]  forget        0|1    1: lanes, answers and waiters are not what they must be: all of them go
-- ARGV[6]  totals        text   names and values of counters, with spaces between
-- ARGV[7..]  shares      text   names and values of `shares`
-- Returns  each after a -
--   OK last                           it is in place; the newest index that was given
--   CLOSED why                        the fence or the copy is there no more
--   GONE                              another epoch
-- Writes   every key
-- Publishes  wake to every waiter, standby to waiters
-- @include exchange
local id, copy, high, totals = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[6]
read_settings()
if settings.epoch ~= ARGV[1] then return {'GONE', '-'} end
local left, whose = fenced_for(settings.fenced)
if redis.call('HGET', config, 'mended') == id then return {'OK', '-', int(redis.call('HGET', counters, 'last'))} end -- sent again
if left == 0 or whose ~= id or exchange.setting('epoch') ~= copy then return {'CLOSED', '-', 'unknown'} end
if ARGV[5] == '1' then redis.call('UNLINK', lanes, requests, writers, waiters, waiting) end
exchange.clear()
redis.call('HDEL', config, 'fenced', 'incoming')
redis.call('HSET', config, 'mended', id)
for name in pairs(exchange.OWN) do redis.call('HSET', counters, name, 0) end -- the copy has them
redis.call('HSET', counters, unpack(split(totals)))
read_counters()
local time = now()
exchange.run(high, totals, time)
for i = 7, #ARGV, 2 do redis.call('HSET', shares, ARGV[i], ARGV[i + 1]) end
wake_all(time)
wake(time)
commit()
return {'OK', '-', int(count('last'))}
