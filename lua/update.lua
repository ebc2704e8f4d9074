-- update: sets priorities by index; those that are not stored, or are out of the buffer already, are ignored.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5..]  pair        text   two for each record, 1 to 20,000 of them: index, priority >= 0; no index twice
-- Returns  each after the word what became of open_number: applied, never or -
--   OK applied ignored                how many have the priority now, and how many are not there
--   DAMAGED key found expected        a key is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   priorities, places, buckets, ranked, config (max_priority), counters
-- Publishes  wake, standby to waiters
-- @include request
local again, became, time = accept(false, false)
if again then return again end
local indices, given, applied = {}, {}, {}
for i = 5, #ARGV, 2 do indices[#indices + 1], given[ARGV[i]] = ARGV[i], ARGV[i + 1] end
priority.load(indices)

-- What is lent keeps its priority for when it comes back.
local function apply(index, p)
  if priority.stay(index, p) then return end
  if not priority.is_seated(index) and not is_present(index) then
    priority.keep(index, p)
    return
  end
  local could, can = priority.leave(index) and 1 or 0, priority.enter(index, p) and 1 or 0
  bump('sampleable_size', can - could)
  bump('hidden', could - can)
end

local gone = ask_many('SMISMEMBER', parting, indices)
for i, index in ipairs(indices) do
  if priority.of(index) and gone[i] == 0 then
    apply(index, given[index])
    applied[#applied + 1] = given[index]
  end
end
priority.note_largest(applied)
return reply('update', became, {'OK', int(#applied), int(#indices - #applied)}, time)
