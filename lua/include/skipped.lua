-- skipped: ranges of indices that nobody is given, ever: a server that comes back may have lost some that were (greet.lua).
-- They are wide, so nothing is kept for each: arithmetic between indices goes by their places, which count what is not skipped.
-- @include book
local RANGES = 16 -- kept where no live record lies before them, so that a call that names one is told apart
local MANY_RANGES = 1000 -- that lie between live records: each script reads them all
local ranges = {} -- in order: low, high, and how many indices are skipped below

-- Takes in "low:high low:high". Whether one of our scripts can have written it.
local function read_ranges(text)
  local past, below = 0, 0
  ranges = {}
  for _, word in ipairs(split(text)) do
    local low, high = word:match('^(%d+):(%d+)$')
    low, high = tonumber(low), tonumber(high)
    if not low or low <= past or high < low then return false end
    ranges[#ranges + 1] = {low = low, high = high, below = below}
    past, below = high, below + high - low + 1
  end
  return past <= count('last')
end

-- How many indices up to this one are not skipped.
local function place(index)
  for i = #ranges, 1, -1 do
    local r = ranges[i]
    if index > r.high then return index - r.below - (r.high - r.low + 1) end
    if index >= r.low then return r.low - 1 - r.below end
  end
  return index
end

-- The index at a place.
local function index_at(at)
  for i = #ranges, 1, -1 do
    local r = ranges[i]
    if at >= r.low - r.below then return at + r.below + (r.high - r.low + 1) end
  end
  return at
end

local function is_skipped(index)
  return place(index) == place(index - 1)
end

-- The last index below that is not skipped.
local function unskipped(index)
  return index_at(place(index))
end

local function are_too_many()
  local oldest = ranges[#ranges - MANY_RANGES + 1]
  return not has_order() and oldest and oldest.high >= count('first')
end

-- The indices behind the last one, up to `high`, are given to nobody.
local function skip_to(high)
  local old, words = ranges[#ranges], {}
  if old and old.high == count('last') then old.high = high
  else ranges[#ranges + 1] = {low = count('last') + 1, high = high} end
  while #ranges > RANGES and (has_order() or ranges[1].high < count('first')) do table.remove(ranges, 1) end
  for i, r in ipairs(ranges) do words[i] = int(r.low) .. ':' .. int(r.high) end
  redis.call('HSET', config, 'skipped', table.concat(words, ' '))
  set_count('last', high)
  if not has_order() and count('sampleable_size') + count('hidden') == 0 then set_count('first', high + 1) end
  read_ranges(table.concat(words, ' '))
end
