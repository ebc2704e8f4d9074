-- survey: a page of the stream as it is, with what each side key says of each entry, all at one moment. Believes nothing that
--         it finds: a key of another type is as good as none. Reads only.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  after         text   the id to go on behind; 0 to begin
-- ARGV[3]  page_size     int    entries; fewer, where those would be above 8 MiB
-- ARGV[4]  with_bytes    0|1    the payloads, too
-- Returns  each after a -
--   OK after id where fact ranked payload…   after: the last id, or empty at the end; where: letters: o in
--                                     `order`, h in `holes`, p in `parting`, or -; fact: see cut.facts; ranked: its score, or -
--   DAMAGED key found expected        the settings are not such that a script can go by them
--   GONE                              another epoch
-- @include cut
local after, page_size, with_bytes = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
if redis.call('TYPE', config).ok ~= 'hash' then return {'GONE', '-'} end
read_settings()
if settings.epoch ~= ARGV[1] then return {'GONE', '-'} end
local wrong = weight.unsound()
if wrong then return {'DAMAGED', '-', config, 'has no sampler of this version as ' .. wrong, 'one'} end

local function sound(key, kind)
  return redis.call('TYPE', key).ok == kind and key or none
end
uses, priorities, authors = sound(uses, 'hash'), sound(priorities, 'hash'), sound(authors, 'hash')
order, holes, ranked, versions = sound(order, 'zset'), sound(holes, 'zset'), sound(ranked, 'zset'), sound(versions, 'zset')
parting = sound(parting, 'set')
records = redis.call('EXISTS', records) == 0 and sound(inbox, 'stream') or sound(records, 'stream') -- inside a gate

local bytes = tonumber(settings.record_bytes) or 0
page_size = math.max(1, math.min(page_size, math.floor(8388608 / math.max(1, bytes))))
local found = redis.call('XRANGE', records, '(' .. after, '+', 'COUNT', page_size)
local indices, names = {}, {}
for i, entry in ipairs(found) do
  indices[i] = entry[1]:match('^0%-(%d+)$') or '0'
  if #indices[i] > 16 then indices[i] = '0' end -- none of ours
  names[i] = string.format('%016.0f', indices[i])
end
local facts, scores = cut.facts(indices), ask_many('ZMSCORE', ranked, names)
local left, in_order, in_holes = ask_many('SMISMEMBER', parting, indices), ask_many('ZMSCORE', order, indices),
  ask_many('ZMSCORE', holes, indices)
local out = {'OK', '-', #found == page_size and found[#found][1] or ''}
for i, entry in ipairs(found) do
  local where = (in_order[i] and 'o' or '') .. (in_holes[i] and 'h' or '') .. (left[i] == 1 and 'p' or '')
  for _, word in ipairs({entry[1], where ~= '' and where or '-', facts[i], scores[i] or '-',
                         with_bytes and entry[2][2] or ''}) do
    out[#out + 1] = word
  end
end
return out
