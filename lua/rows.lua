-- rows: records as they were when a dump began, a page of them; what lies before it is free again.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  id            text   of the dump
-- ARGV[3]  after         int    the index to go on behind: the caller has all up to it
-- ARGV[4]  page_size     int    entries to look at; fewer, where those would be above 8 MiB
-- Returns  each after a -
--   OK after index payload fact…      after: where the next page starts, or empty at the end; fact: see cut.facts
--   CLOSED why                        the dump is not open: held (more would be kept for it than it allowed), emptied, loaded,
--                                     late (it asked for nothing so long), or unknown
--   DAMAGED key found expected        a key is missing
--   GONE                              another epoch
-- Writes   config, counters, what was kept for the dump up to `after`
-- @include request
local LATE_US = 60 * 1000000
local id, after, page_size = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local refused = enter(epoch)
if refused then return refused end
redis.call('DEL', none)
local time, c = now(), cut.state()
if not c or c.id ~= id then
  commit()
  local of, why = (redis.call('HGET', config, 'cut_end') or ''):match('^(%x+) (%l+)$')
  return {'CLOSED', '-', of == id and why or 'unknown'}
end
cut.write(id, c.last, math.max(c.done, after), time + LATE_US, c.most)
let_go_of_read(page_size)
commit()
page_size = math.max(1, math.min(page_size, math.floor(8388608 / math.max(1, tonumber(settings.record_bytes)))))
local found = redis.call('XRANGE', records, '(0-' .. int(after), '0-' .. int(c.last), 'COUNT', page_size)
local out = {'OK', '-', #found == page_size and found[#found][1]:sub(3) or ''}
local indices = {}
for i, entry in ipairs(found) do indices[i] = entry[1]:sub(3) end
local facts, notes = cut.facts(indices), ask_many('HMGET', noted, indices)
for i, left in ipairs(ask_many('SMISMEMBER', parting, indices)) do
  local fact = notes[i] or (left == 1 and 'out') or facts[i]
  if fact ~= 'out' then
    out[#out + 1], out[#out + 2], out[#out + 3] = indices[i], found[i][2][2], fact
  end
end
return out
