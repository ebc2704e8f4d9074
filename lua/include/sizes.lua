-- sizes: how many records are live, and how many hidden; with what priorities mean for that.
-- @include given
-- @include age

-- These may be drawn from now on, unless their priority is 0: then they are hidden. `given`: the priority of each.
local function count_in(indices, given)
  local live = #indices
  if weight.is_used() then
    live = 0
    for i, index in ipairs(priority.load(indices)) do
      if priority.enter(index, given and given[i]) then live = live + 1 end
    end
  end
  bump('sampleable_size', live)
  bump('hidden', #indices - live)
end

-- And these may not any more.
local function count_out(indices)
  local live = #indices
  age.leave(indices)
  if weight.is_used() then
    live = 0
    for _, index in ipairs(priority.load(indices)) do
      if priority.leave(index) then live = live + 1 end
    end
  end
  bump('sampleable_size', -live)
  bump('hidden', live - #indices)
end

-- Live and hidden: what `order`, or the range, holds.
local function present()
  return count('sampleable_size') + count('hidden')
end
