-- page: stored records in order of index, a page of them.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  after         int    the index to go on behind
-- ARGV[3]  page_size     int    entries to look at; fewer, where those would be above 8 MiB
-- Returns  each after a -
--   OK schema_hash after index payload…    after: where the next page starts, or empty at the end
--   DAMAGED key found expected        the stream of records is missing
--   GONE                              another epoch
-- @include state
local epoch, after, page_size = ARGV[1], ARGV[2], tonumber(ARGV[3])
local refused = enter(epoch)
if refused then return refused end
page_size = math.max(1, math.min(page_size, math.floor(8388608 / math.max(1, tonumber(settings.record_bytes)))))
local found = redis.call('XRANGE', records, '(0-' .. after, '0-' .. int(count('last')), 'COUNT', page_size)
local full = #found == page_size
local out = {'OK', '-', settings.schema_hash or '', full and found[#found][1]:sub(3) or ''}
for _, entry in ipairs(found) do
  local index = entry[1]:sub(3)
  if redis.call('SISMEMBER', parting, index) == 0 then
    out[#out + 1], out[#out + 2] = index, entry[2][2]
  end
end
return out
