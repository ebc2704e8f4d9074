-- priority: what each record weighs, where the sampler asks for it. By identity: an index that is not stored has none.
-- @include sort
-- @include rank
local priority = {}

-- The number of its block, and its spot there.
function priority.locate(index)
  local spot = index % block.SIZE
  return (index - spot) / block.SIZE, spot
end

-- The records of many indices are known from now on; gives them as numbers.
function priority.load(indices)
  local numbers, out = {}, {}
  for i, index in ipairs(indices) do
    out[i] = tonumber(index)
    numbers[i] = priority.locate(out[i])
  end
  block.load(numbers)
  return out
end

-- Where a stored record is: a block, a spot, what it weighs, its priority. nil: it is not stored.
function priority.find(index)
  local number, spot = priority.locate(index)
  local b = block.open(number)
  if not b then return nil end
  local w, p = block.at(b, spot)
  if p < 0 then return nil end
  return b, spot, w, p
end

-- The priorities of stored records, 8 bytes each.
function priority.bytes(indices)
  local out = {}
  for i, index in ipairs(priority.load(indices)) do
    local number, spot = priority.locate(index)
    local text = block.text(number)
    out[i] = text and block.bytes(text, spot) or double.pack(-1)
  end
  return table.concat(out)
end

-- Can be drawn from now on, unless the priority is 0. `p`: its priority; nil: as it was. Gives whether it can.
function priority.enter(index, p)
  local number, spot = priority.locate(index)
  local b = block.open(number) or block.create(number)
  local had_w, had_p = block.at(b, spot)
  p = p or (had_p >= 0 and had_p) or 1
  local hides = p == 0 and weight.hides()
  block.put(b, spot, weight.in_bins() and not hides and weight.of(p) or 0, p, had_w, had_p)
  rank.set(index, p)
  if hides then return false end
  return true
end

-- Cannot be drawn any more. Gives whether it could.
function priority.leave(index)
  rank.drop(index)
  if not weight.in_bins() then return true end
  local b, spot, w, p = priority.find(index)
  if not b or w == 0 then return false end
  block.put(b, spot, 0, p, w, p)
  return true
end

-- Nothing is stored at these indices.
function priority.forget(indices)
  for _, index in ipairs(priority.load(indices)) do
    local b, spot, w, p = priority.find(index)
    if b then block.put(b, spot, 0, -1, w, p) end
  end
end

function priority.write()
  if not weight.is_used() then return end
  bin.settle()
  block.write()
  seat.write()
  bin.write()
  rank.write()
end
