-- empty: takes all records out, held ones too. Indices, schema, lanes and waiters go on.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  reset         0|1    1: write_count, consumed, evicted, removed and stale, and the writers' shares, start at
--                              0; 0: what goes counts as removed
-- Returns  each after the word what became of open_number: applied, never or -
--   OK                                done
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   every key but config (but for its max_priority), lanes, requests, waiters, waiting
-- Publishes  wake, standby to waiters
-- @include request
-- @include clear
local again, became, time = accept(false, false)
if again then return again end
commit() -- what settling the lane's open number had changed
local reset = ARGV[5] == '1'
local gone = present() + count('leased')
clear_records()
redis.call('UNLINK', order, holes, uses, parting, held, holds, leases, leased, priorities, places, buckets, ranked,
  versions, authors, kept)
cut.close('emptied')
redis.call('HDEL', config, 'max_priority')
for _, name in ipairs({'sampleable_size', 'storage_size', 'hidden', 'leased', 'parting', 'used', 'unseen'}) do
  set_count(name, 0)
end
set_count('first', count('last') + 1)
limit.begin()
if reset then
  redis.call('HSET', counters, 'write_count', 0, 'consumed', 0, 'evicted', 0, 'removed', 0, 'stale', 0)
  redis.call('UNLINK', shares)
else
  bump('removed', gone)
end
return reply('empty', became, {'OK'}, time)
