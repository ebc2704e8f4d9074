-- audit: a page of a side key: the entries that name no stored record. Reads only.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  what          text   order, uses, parting, held, holes, priorities, ranked, versions, authors, kept,
--                              noted or leased
-- ARGV[3]  cursor        text   0 to begin, then what the last page gave
-- Returns  each after a -
--   OK cursor looked index…           cursor: 0 at the end; looked: entries seen; the indices without a record
--   GONE                              another epoch
-- @include block
local what, cursor = ARGV[2], ARGV[3]
if redis.call('HGET', config, 'epoch') ~= ARGV[1] then return {'GONE', '-'} end
local SCANS = {order = {'ZSCAN', order, 2}, uses = {'HSCAN', uses, 2}, parting = {'SSCAN', parting, 1},
               held = {'HSCAN', held, 2}, holes = {'ZSCAN', holes, 2},
               priorities = {'HSCAN', priorities, 2, 5}, ranked = {'ZSCAN', ranked, 2},
               versions = {'ZSCAN', versions, 2}, authors = {'HSCAN', authors, 2}, kept = {'ZSCAN', kept, 2},
               noted = {'HSCAN', noted, 2}, leased = {'HSCAN', leased, 2, 1}}
local command, key, step, page_size = unpack(SCANS[what])
local page = redis.call(command, key, cursor, 'COUNT', page_size or 200)

local function is_wrong(index)
  local id = '0-' .. index
  local found = redis.pcall('XRANGE', records, id, id) -- an error where the entry is no index
  local stored = not found.err and #found == 1
  if what == 'holes' then return stored and redis.call('SISMEMBER', parting, index) == 0 end -- no live record there
  return not stored
end

-- The indices of a block that have a priority. What is no block names what is not there.
local function stored_in(list, number, text)
  if not number:find('^%d+$') or #text ~= block.HEAD + 2 * block.HALF then
    list[#list + 1] = number
    return
  end
  for spot = 0, block.SIZE - 1 do
    local p = double.at(text, block.HEAD + block.HALF + 8 * spot + 1)
    if p >= 0 then list[#list + 1] = int(number * block.SIZE + spot) end
  end
end

local indices = {}
for i = 1, #page[2], step do
  if what == 'leased' then
    local words = split(page[2][i + 1])
    for k = 2, #words do indices[#indices + 1] = words[k] end
  elseif what == 'priorities' then
    stored_in(indices, page[2][i], page[2][i + 1])
  else
    indices[#indices + 1] = page[2][i]
  end
end
local out = {'OK', '-', page[1], int(#indices)}
for _, index in ipairs(indices) do
  if is_wrong(index) then out[#out + 1] = index end
end
return out
