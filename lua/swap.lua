-- swap: the copy that was filled takes the place of what the buffer holds.
-- KEYS     the list of include/keys.lua, and the same list of the copy
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  copy          text   the epoch of the copy
-- ARGV[6]  high          int    no index up to this one is given to a new record
-- ARGV[7]  own           0|1    its indices are the buffer's own; else all must be above those that were given
-- ARGV[8]  totals        text   names and values of counters, with spaces between
-- ARGV[9..]  shares      text   names and values of `shares`
-- Returns  each after the word what became of open_number: applied, never or -
--   OK last                           it is in place; the newest index that was given
--   MOVED last                        others have written meanwhile: the copy's indices are too low
--   CLOSED why                        there is no such copy any more: it was not written to for too long
--   SHUT                              the buffer is draining or shut
--   SCHEMA                            the buffer has another one by now
--   LIMIT what value n limit          an index would pass its last value
--   DAMAGED key found expected        a key is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   every key
-- Publishes  wake to every waiter, standby to waiters
-- @include exchange
-- @include write
local copy, high, is_own, totals = ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8]
local again, became, time = accept(true, false)
if again then return again end

local function why_not()
  if exchange.setting('epoch') ~= copy then return {'CLOSED', 'unknown'} end
  if settings.state ~= 'open' then return {'SHUT'} end
  if settings.schema_hash and settings.schema_hash ~= (exchange.setting('schema_hash') or settings.schema_hash) then
    return {'SCHEMA'}
  end
  if high > MAX_INDEX then return {'LIMIT', 'index', int(count('last')), int(high), int(MAX_INDEX)} end
  if not is_own and exchange.counter('first') <= count('last') then return {'MOVED', int(count('last'))} end
  return nil
end

local why = why_not()
if why then return reply('swap', became, why, time) end
exchange.run(high, totals, time)
for i = 9, #ARGV, 2 do redis.call('HSET', shares, ARGV[i], ARGV[i + 1]) end
wake_all(time)
return reply('swap', became, {'OK', int(count('last'))}, time)
