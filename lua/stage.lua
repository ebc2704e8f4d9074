-- stage: begins a copy beside the buffer, to be filled by restore.lua and put in its place by swap.lua.
-- KEYS     the list of include/keys.lua, of the copy
-- ARGV[1]  epoch         text   of the copy: the name of this load
-- ARGV[2]  first         int    its first index
-- ARGV[3]  ttl_ms        int    after which it goes by itself, unless something more of it comes
-- ARGV[4..]  config      text   names and values of its settings
-- Returns  each after a -
--   OK                                it is there, and empty
--   RUNNING us                        another load is; it goes after so long without a sign
-- Writes   every key of the copy
-- @include create
local epoch, first, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local known = redis.call('HGET', config, 'epoch')
if known and known ~= epoch then return {'RUNNING', '-', int(math.max(1, redis.call('PTTL', config)) * 1000)} end
redis.call('UNLINK', unpack(KEYS))
local fields = {'epoch', epoch, 'state', 'open', 'drained', '0', 'shutdowns', '0'}
for i = 4, #ARGV do fields[#fields + 1] = ARGV[i] end
create(fields, first)
if first > 1 then -- a stream that says so, also where no record comes
  redis.call('XADD', records, '0-' .. int(first - 1), 'd', '')
  redis.call('XDEL', records, '0-' .. int(first - 1))
end
for _, key in ipairs({config, counters, records}) do redis.call('PEXPIRE', key, ttl_ms) end
return {'OK', '-'}
