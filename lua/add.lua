-- add: writes small records, all or none.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  schema_hash   text   of the records
-- ARGV[6]  schema        text   the schema itself, or empty: the caller thinks it is known
-- ARGV[7]  record_bytes  int    bytes of the largest record
-- ARGV[8]  total_bytes   int    bytes of all records
-- ARGV[9]  priority      text   of each record, or one for all, with spaces between; or empty: the default
-- ARGV[10] seed          text   six seeds of 32 bits with spaces between, where the remover is random, or empty
-- ARGV[11] origin        text   writer and versions of the records, or empty: see age.lua
-- ARGV[12] keep_place    0|1    its wait has its turn
-- ARGV[13..]  payload    bytes  one for each record, 1 to 20,000
-- Returns  each after the word what became of open_number: applied, never or -
--   OK first last                     indices of the first and the last record
--   SHUT                              the buffer is draining or shut
--   NOT_READY have need shutdowns again_us idle_us writers leased hidden live limiter    the rate limiter; see wait.lua
--   FULL capacity                     every record is lent to readers, and none of them can be evicted
--   NO_SCHEMA                         none is stored yet: send again with the full text
--   SCHEMA                            the buffer has another one
--   LIMIT what value n limit          an index or a counter would pass its last value
--   DAMAGED key found expected        the stream holds entries that cannot be the buffer's
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   records, order, priorities, versions, authors, shares, counters, writers, config (schema), what eviction touches
-- Publishes  wake, standby to waiters
-- @include write
local schema_hash, schema, record_bytes, total_bytes = ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local n = #ARGV - 12

local again, became, time = accept(true, ARGV[12] == '1')
if again then return again end
local why = refusal(n, schema_hash, schema, total_bytes, time)
if why then return reply('add', became, give_up(why), time) end

local id = redis.pcall('XADD', records, '0-*', 'd', ARGV[13])
if type(id) ~= 'string' and not string.find(id.err, ' ID', 1, true) then -- refused for another reason: this raises it
  redis.call('XADD', records, '0-*', 'd', ARGV[13])
end
local first = type(id) == 'string' and follows(id, n)
if not first then -- somebody moved the stream's last id by hand
  if type(id) == 'string' then redis.call('XDEL', records, id) else id = 'none' end
  return reply('add', became, damage(id), time)
end
leave_gap(first - 1)
describe(schema_hash, schema, record_bytes)
for i = 14, #ARGV do redis.call('XADD', records, '0-*', 'd', ARGV[i]) end
written(n, total_bytes, time, ARGV[9], ARGV[10], ARGV[11])
return reply('add', became, {'OK', int(first), int(first + n - 1)}, time)
