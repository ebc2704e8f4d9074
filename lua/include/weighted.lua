-- weighted: draws by weight, and what is told of them. A draw writes nothing.
-- @include state
-- @include random
local weighted = {}

-- Those that hold somebody, largest first, with how much of a draw each place is, in proportion to the first one: smaller ones
-- may be 0 beside it, and no more once it is empty.
function weighted.measure(list)
  for i = #list, 1, -1 do
    if list[i].n == 0 then table.remove(list, i) end
  end
  table.sort(list, function(a, b) return a.k > b.k end)
  list.total = 0
  for _, b in ipairs(list) do
    b.size = 2 ^ ((b.k - list[1].k) / 4)
    list.total = list.total + b.n * b.size
  end
  return list
end

-- The bins, as a draw sees them: `moved` is who has which place for this draw alone.
function weighted.full()
  local out = {}
  bin.settle()
  for k, b in pairs(bin.all()) do out[#out + 1] = {k = k, n = b.n, sum = b.sum, finish = b.finish, moved = {}} end
  return weighted.measure(out)
end

-- Where a number from 0 to 1 falls: a bin, a place in it, and how far up to the bin's end.
function weighted.fall(list, part)
  local at, b = part * list.total, nil
  for i = 1, #list do
    b = list[i]
    if at < b.n * b.size then break end
    if i < #list then at = at - b.n * b.size end
  end
  at = at / b.size
  local nth = math.min(math.floor(at), b.n - 1)
  return b, nth, (at - nth) * b.finish
end

-- Where many numbers fall: bins, places there, how far up, and who is there, whose block is known from now on.
function weighted.fall_many(list, parts)
  local found, nths, ups, ks = {}, {}, {}, {}
  for i = 1, #parts do
    local b
    b, nths[i], ups[i] = weighted.fall(list, parts[i])
    found[i], ks[i] = b, b.k
  end
  local ids = seat.many(ks, nths)
  if not ids then return nil end
  block.load(ids)
  return ids, ups, found, nths
end

-- What a client needs to tell probabilities: the priority of each, 8 bytes; and of the whole: the sum of weights / 2^k, k, the
-- least priority, and the alpha in force; - where it is not known.
function weighted.odds(indices)
  if not weight.is_used() then return '', '' end
  local list, total = weighted.full(), 0
  for _, b in ipairs(list) do total = total + b.sum * (b.finish / list[1].finish) end
  local least = weight.is_ranked() and rank.priority('ZRANGE')
  local e = list[1] and math.floor(list[1].k / 4) or 0
  if list[1] then total = total * math.ldexp(list[1].finish, -e) end
  local sum = weight.in_bins() and string.format('%.17g %d', total, e + weight.UNIT) or '- -'
  return indices.bytes or priority.bytes(indices), sum .. ' ' .. (least or '-') .. ' ' .. (weight.option('alpha') or '-')
end
