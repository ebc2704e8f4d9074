-- cut: a dump begins: what there is now is what it will read, by rows.lua; or it ends.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  id            text   of the dump, hexadecimal
-- ARGV[3]  step          text   open or close
-- ARGV[4]  most_bytes    int    that may be kept for it; more ends it
-- Returns  each after a -
--   OK last config counters shares lent   the newest index, and three hashes as they are at this moment; lent: how many leases
--                                     are open, their records, and the rate limiter's difference as if they were not;
--                                     of step close: nothing
--   RUNNING us                        another dump is: until it has not asked for more so long
--   DAMAGED key found expected        a key is missing
--   GONE                              another epoch
-- Writes   config, counters (clock), noted, kept, what was kept for another dump or had run out
-- @include request
local LATE_US = 60 * 1000000
local id, step, most_bytes = ARGV[2], ARGV[3], tonumber(ARGV[4])
local refused = enter(epoch)
if refused then return refused end
redis.call('DEL', none)
local time = now()
reclaim(time)

-- What is lent is in the dump as if it had come back.
local function lent()
  local n, records_lent = 0, 0
  for _, text in ipairs(count('leased') > 0 and redis.call('HVALS', leased) or {}) do
    local words = split(text)
    local many_ = #words - 1
    n, records_lent = n + 1, records_lent + many_
    limit.undone(many_, many_, '-' .. (words[1]:match(':(%d+)$') or ''))
  end
  local diff = int(count('diff'))
  deltas = {} -- nothing of that is so
  return {int(n), int(records_lent), diff}
end

local other = cut.state() and cut.state().id ~= id and cut.state().ends - time
if step == 'open' and other then
  commit()
  return {'RUNNING', '-', int(other)}
end
if not other then cut.close() end
if step == 'close' then
  let_go_of_read(2000)
  commit()
  return {'OK', '-'}
end
commit()
redis.call('HDEL', config, 'cut_end')
local out = {'OK', '-', int(count('last')), redis.call('HGETALL', config), redis.call('HGETALL', counters),
  redis.call('HGETALL', shares), lent()}
cut.write(id, count('last'), 0, time + LATE_US, most_bytes)
return out
