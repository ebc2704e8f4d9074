-- gate: lets large records in. Called twice in one MULTI, around native XADDs to `inbox`; refused, or lost, the adds do nothing.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  step          text   open or close
-- ARGV[6]  schema_hash   text   of the records
-- ARGV[7]  schema        text   the schema itself, or empty: the caller thinks it is known
-- ARGV[8]  record_bytes  int    bytes of the largest record
-- ARGV[9]  total_bytes   int    bytes of all records
-- ARGV[10] n             int    records that follow, 1 to 20,000
-- ARGV[11] priority      text   of each record, or one for all, with spaces between; or empty: the default
-- ARGV[12] seed          text   six seeds of 32 bits with spaces between, where the remover is random, or empty
-- ARGV[13] origin        text   writer and versions of the records, or empty: see age.lua
-- ARGV[14] keep_place    0|1    its wait has its turn
-- Returns  each after the word what became of open_number: applied, never or -
--   OPEN first last                   the way is open, for these indices (step open)
--   OK first last                     they are in (step close; or a repeated number: they were in before)
--   CLOSED                            it was not open (step close)
--   SHUT                              the buffer is draining or shut
--   NOT_READY have need shutdowns again_us idle_us writers leased hidden live limiter    the rate limiter; see wait.lua
--   FULL capacity                     every record is lent to readers, and none of them can be evicted
--   NO_SCHEMA                         none is stored yet: send again with the full text
--   SCHEMA                            the buffer has another one
--   LIMIT what value n limit          an index or a counter would pass its last value
--   DAMAGED key found expected        the stream holds entries that cannot be the buffer's
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   records (as inbox), order, priorities, versions, authors, shares, counters, writers, config (schema, incoming), what
--          eviction touches
-- Publishes  wake, standby to waiters
-- @include write
local step, schema_hash, schema = ARGV[5], ARGV[6], ARGV[7]
local record_bytes, total_bytes, n = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

-- The answer is kept when the way opens: nothing between here and the close can fail, and a repeated number must not open it.
local function open_gate()
  local again, became, time = accept(true, ARGV[14] == '1')
  if again then return again end
  local why = refusal(n, schema_hash, schema, total_bytes, time)
  if why then return reply('gate', became, give_up(why), time) end
  describe(schema_hash, schema, record_bytes)
  local answer = reply('gate', became, {'OK', int(count('last') + 1), int(count('last') + n)}, time)
  if age.is_kept() then redis.call('HSET', config, 'incoming', ARGV[13]) end -- for `mend`, if this gate is not closed
  redis.call('RENAME', records, inbox)
  answer[1] = 'OPEN'
  return answer
end

local function delete_behind_last()
  local low = '(0-' .. int(count('last'))
  local found = redis.call('XRANGE', records, low, '+', 'COUNT', 1)
  while #found == 1 do
    redis.call('XDEL', records, found[1][1])
    found = redis.call('XRANGE', records, low, '+', 'COUNT', 1)
  end
end

local function close_gate()
  local refused = enter(epoch, true)
  if refused then return refused end
  if redis.call('EXISTS', inbox) == 0 then return {'CLOSED', '-'} end
  redis.call('DEL', none)
  redis.call('RENAME', inbox, records)
  if settings.incoming then redis.call('HDEL', config, 'incoming') end
  local time, oldest = now(), redis.call('XRANGE', records, '(0-' .. int(count('last')), '+', 'COUNT', 1)[1]
  local first = oldest and follows(oldest[1], n)
  if not first then -- somebody moved the stream's last id by hand
    delete_behind_last()
    return reply('gate', '-', damage(oldest and oldest[1] or 'none'), time)
  end
  leave_gap(first - 1)
  written(n, total_bytes, time, ARGV[11], ARGV[12], ARGV[13])
  return reply('gate', '-', {'OK', int(first), int(first + n - 1)}, time)
end

if step == 'open' then return open_gate() end
return close_gate()
