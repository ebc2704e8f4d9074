-- weighted: a draw by weight, one record at a time, and what is told of it.
-- @include state
-- @include random
local weighted = {}

-- A number from 0 to 1, not 1 itself.
function weighted.part()
  return (next_random() + next_random() / M1) / M1
end

-- In proportion to the first one, which holds somebody: smaller ones may be 0 beside it, and no more once it is empty.
function weighted.sized(list)
  while list[1] and list[1].n == 0 do table.remove(list, 1) end
  for _, b in ipairs(list) do b.size = 2 ^ (b.k - list[1].k) end
  return list
end

-- The bins that hold somebody, largest first; `size` is how much of a draw each is, if every weight in it were the largest.
function weighted.full()
  local out = {}
  for k, b in pairs(bin.all()) do
    if b.n > 0 then out[#out + 1] = {k = k, n = b.n, sum = b.sum, moved = {}} end
  end
  table.sort(out, function(a, b) return a.k > b.k end)
  return weighted.sized(out)
end

function weighted.bin(list)
  local total, last = 0, nil
  for _, b in ipairs(list) do total = total + b.n * b.size end
  local at = weighted.part() * total
  for _, b in ipairs(list) do
    if b.n > 0 then
      if at < b.n * b.size then return b end
      at, last = at - b.n * b.size, b
    end
  end
  return last
end

-- One record: a bin, a place in it, and a coin, until the coin falls right. Gives the spot too; nil where nobody has it.
function weighted.one(list)
  while true do
    local b = weighted.bin(list)
    local spot = random_below(b.n)
    local record = bin.seat(b.k, b.moved[spot] or spot)
    if not record then return nil end
    local part = bin.part(record)
    if part == 1 or next_random() < part * M1 then return record, b, spot end
  end
end

-- What a client needs to tell probabilities: the priority of each, and of the whole: the sum of weights / 2^k, k, and the least
-- priority; - where it is not known.
function weighted.odds(indices)
  if not weight.is_used() then return '', '' end
  local each, list, total = {}, weighted.full(), 0
  priority.load(indices)
  for i, index in ipairs(indices) do each[i] = priority.of(index) or '1' end
  for _, b in ipairs(list) do total = total + b.sum * b.size end
  local least = weight.is_ranked() and rank.priority('ZRANGE')
  local sum = weight.in_bins() and string.format('%.17g %d ', total / bin.FIT, list[1] and list[1].k or 0) or '- - '
  return table.concat(each, ' '), sum .. (least or '-')
end
