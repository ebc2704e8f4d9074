-- update: sets priorities by index; those that are not stored, or are out of the buffer already, are ignored.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  index         text   of 1 to 20,000 records, 8 bytes each, as include/double.lua has them; none twice
-- ARGV[6]  priority      text   of each, 8 bytes; >= 0
-- Returns  each after the word what became of open_number: applied, never or -
--   OK applied ignored                how many have the priority now, and how many are not there
--   DAMAGED key found expected        a key is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   priorities, places, buckets, ranked, config (max_priority), counters
-- Publishes  wake, standby to waiters
-- @include request
-- @include swap
local again, became, time = accept(false, false)
if again then return again end
local n, applied, gone = #ARGV[5] / 8, {}, {}
local indices, numbers, spots = {}, {}, {}
for i = 1, n do
  local index = double.at(ARGV[5], 8 * i - 7)
  indices[i] = index
  numbers[i], spots[i] = priority.locate(index)
end
block.load(numbers)
if count('parting') > 0 then
  local names = {}
  for i, index in ipairs(indices) do names[i] = int(index) end
  gone = ask_many('SMISMEMBER', parting, names)
end
cut.note(indices)

-- Gives whether the record is stored. Of one that is lent, for when it comes back.
local function change(index, p)
  local b, spot, had_w, had_p = priority.find(index)
  if not b then return false end
  if had_w == 0 and not is_present(int(index)) then
    block.put(b, spot, 0, p, 0, had_p)
    return true
  end
  local could, can = (had_w > 0 or not weight.in_bins()) and 1 or 0, priority.enter(index, p) and 1 or 0
  bump('sampleable_size', can - could)
  bump('hidden', could - can)
  return true
end

for i, index in ipairs(indices) do
  local p = double.at(ARGV[6], 8 * i - 7)
  local weighs = weight.in_bins() and (p > 0 or not weight.hides())
  local is_swapped = gone[i] ~= 1 and weighs and swap(numbers[i], spots[i], weight.of(p), p)
  if is_swapped then rank.set(index, p) end
  if is_swapped or (gone[i] ~= 1 and change(index, p)) then applied[#applied + 1] = p end
end
priority.note_largest(applied)
return reply('update', became, {'OK', int(#applied), int(n - #applied)}, time)
