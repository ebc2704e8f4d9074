-- audit: a page of a side key: the entries that name no stored record. Reads only.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  what          text   order, uses, parting, held, holes, priorities, ranked, versions, authors, leased,
--                               holds, lanes, waiters, writers, shares, places, kept or noted
-- ARGV[3]  cursor        text   0 to begin, then what the last page gave
-- Returns  each after a -
--   OK cursor looked index…           cursor: 0 at the end; looked: entries seen; the indices without a record,
--                                     and entries that no script writes, as name=value
--   GONE                              another epoch
-- @include block
-- @include seat
local what, cursor = ARGV[2], ARGV[3]
if redis.call('HGET', config, 'epoch') ~= ARGV[1] then return {'GONE', '-'} end
local SCANS = {order = {'ZSCAN', order, 2}, uses = {'HSCAN', uses, 2}, parting = {'SSCAN', parting, 1},
               held = {'HSCAN', held, 2}, holes = {'ZSCAN', holes, 2},
               priorities = {'HSCAN', priorities, 2, 5}, ranked = {'ZSCAN', ranked, 2},
               versions = {'ZSCAN', versions, 2}, authors = {'HSCAN', authors, 2}, leased = {'HSCAN', leased, 2, 1},
               places = {'HSCAN', places, 2, 5}, holds = {'ZSCAN', holds, 2, 5},
               lanes = {'ZSCAN', lanes, 2}, waiters = {'ZSCAN', waiters, 2}, writers = {'ZSCAN', writers, 2},
               shares = {'HSCAN', shares, 2},
               kept = {'ZSCAN', kept, 2}, noted = {'HSCAN', noted, 2}}
-- Where each has an entry, too, and what it looks like.
local HALVES = {holds = {requests, '^%d+ %l+ %u'}, lanes = {requests, '^%d+ %l+ %u'}, waiters = {waiting, '^[rw] [%d ]+ %S+$'},
                writers = {requests, ''}}
local NAMELESS = {places = true, shares = true} -- whose entries name no record
local command, key, step, page_size = unpack(SCANS[what])
local page = redis.call(command, key, cursor, 'COUNT', page_size or 200)

local function is_wrong(index)
  local id = '0-' .. index
  local found = redis.pcall('XRANGE', records, id, id) -- an error where the entry is no index
  local stored = not found.err and #found == 1
  if what == 'holes' then return found.err or stored and redis.call('SISMEMBER', parting, index) == 0 end -- no live record there
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

-- A row of `places`: each block that it names says that it is there.
local function is_row(name, text)
  local k, c = name:match('^(%-?%d+) (%d+)$')
  if not k or #text == 0 or #text % 8 > 0 then return false end
  local numbers = {double.many(text, 1, #text / 8)}
  numbers[#text / 8 + 1] = nil -- the one more
  for i, number in ipairs(numbers) do
    if not (number >= 0 and number < 2 ^ 53 and number % 1 == 0) then return false end
    numbers[i] = int(number)
  end
  for i, block_text in ipairs(ask_many('HMGET', priorities, numbers)) do
    if not block_text or #block_text ~= block.HEAD + 2 * block.HALF then return false end
    local _, _, _, of, nth = double.many(block_text, 1, 5)
    if of ~= tonumber(k) or nth ~= c * seat.CHUNK + i - 1 then return false end
  end
  return true
end

-- A writer's row, or the number that its name has: each says what the other does. Row 0 is of those without a number.
local function is_share(name, text)
  local writer = text:match('^(%S+) %d+ %d+ %d+ %d+$')
  if name:find('^%d+$') then return writer and (name == '0' or redis.call('HGET', shares, '=' .. writer) == name) end
  local row = text:find('^%d+$') and redis.call('HGET', shares, text)
  return row and row:match('^%S+') == name:match('^=(.+)$')
end

-- The half of a lane or a waiter is there; what a lane holds is counted in `held`.
local function has_half(name)
  local half, shape = unpack(HALVES[what])
  local text = redis.call('HGET', half, name)
  if not text or not text:find(shape) then return false end
  local words, drawn = what == 'holds' and split(text) or {}, {}
  for i = 8, #words do drawn[i - 7] = words[i]:match('^%d+') or '' end -- behind number, sample, OK, n, live, era and lease
  for _, holders in ipairs(ask_many('HMGET', held, drawn)) do
    if not holders then return false end
  end
  return true
end

local SHAPES = {uses = '^%d+$', held = '^[1-9]%d*$', authors = '^%d+$', leased = '^%d+:%-?%d+ [%d ]+$'}

-- Whether one of our scripts can have written this entry.
local function is_sound(name, value)
  if what == 'places' then return is_row(name, value) end
  if what == 'leased' and not redis.call('ZMSCORE', leases, name)[1] then return false end
  if what == 'shares' then return is_share(name, value) end
  if HALVES[what] then return has_half(name) end
  return not SHAPES[what] or value:find(SHAPES[what]) ~= nil
end

local indices, odd = {}, {}
for i = 1, #page[2], step do
  if not is_sound(page[2][i], page[2][i + 1]) then
    odd[#odd + 1] = page[2][i] .. '=' .. page[2][i + 1]
  elseif what == 'leased' then
    local words = split(page[2][i + 1])
    for k = 2, #words do indices[#indices + 1] = words[k] end
  elseif what == 'priorities' then
    stored_in(indices, page[2][i], page[2][i + 1])
  elseif not HALVES[what] and not NAMELESS[what] then
    indices[#indices + 1] = page[2][i]
  end
end
local out = {'OK', '-', page[1], int(#indices + #odd), unpack(odd)}
for _, index in ipairs(indices) do
  if is_wrong(index) then out[#out + 1] = index end
end
return out
