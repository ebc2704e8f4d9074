-- get: the bytes of records by index.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2..]  index       int    1 to 4,096 of them
-- Returns  each after a -
--   OK schema_hash payload…           a payload or false for each index, for the first ones that make 8 MiB together
--   DAMAGED key found expected        the stream of records is missing
--   GONE                              another epoch
-- @include fetch
local epoch = ARGV[1]
local refused = enter(epoch)
if refused then return refused end
local out, last = {'OK', '-', settings.schema_hash or ''}, count('last')
local most = math.max(1, math.floor(8388608 / math.max(1, tonumber(settings.record_bytes))))
for i = 2, math.min(#ARGV, most + 1) do
  local index = tonumber(ARGV[i])
  local stored = index <= last and redis.call('SISMEMBER', parting, ARGV[i]) == 0
  local payloads = stored and fetch({ARGV[i]})
  out[#out + 1] = payloads and payloads[1] or false
end
return out
