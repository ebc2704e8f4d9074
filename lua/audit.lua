-- audit: a page of a side key: the entries that name no stored record. Reads only.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  what          text   order, uses, parting, held or holes
-- ARGV[3]  cursor        text   0 to begin, then what the last page gave
-- Returns  each after a -
--   OK cursor looked index…           cursor: 0 at the end; looked: entries seen; the indices without a record
--   GONE                              another epoch
-- @include keys
local what, cursor = ARGV[2], ARGV[3]
if redis.call('HGET', config, 'epoch') ~= ARGV[1] then return {'GONE', '-'} end
local SCANS = {order = {'ZSCAN', order, 2}, uses = {'HSCAN', uses, 2}, parting = {'SSCAN', parting, 1},
               held = {'HSCAN', held, 2}, holes = {'ZSCAN', holes, 2}}
local command, key, step = unpack(SCANS[what])
local page = redis.call(command, key, cursor, 'COUNT', 200)
local out = {'OK', '-', page[1], #page[2] / step}
for i = 1, #page[2], step do
  local id = '0-' .. page[2][i]
  local found = redis.pcall('XRANGE', records, id, id) -- an error where the entry is no index
  local stored = not found.err and #found == 1
  local wrong = not stored
  if what == 'holes' then wrong = stored and redis.call('SISMEMBER', parting, page[2][i]) == 0 end -- no live record there
  if wrong then out[#out + 1] = page[2][i] end
end
return out
