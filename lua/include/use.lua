-- use: handing out records, counted where the buffer consumes.
-- @include request

-- The uses of each, with one more.
local function next_uses(indices)
  local counts = {}
  if settings.consume == 1 then
    for i = 1, #indices do counts[i] = '1' end
    return counts
  end
  for i, had in ipairs(ask_many('HMGET', uses, indices)) do counts[i] = int((had or 0) + 1) end
  return counts
end

-- Counts a use of each. Gives the uses, and a set of those indices whose last one it was.
local function count_uses(indices)
  local counts, set, last = next_uses(indices), {}, {}
  for i, index in ipairs(indices) do
    set[2 * i - 1], set[2 * i] = index, counts[i]
    last[index] = tonumber(counts[i]) == settings.consume or nil
  end
  if settings.consume > 1 then bump('used', call_many('HSET', uses, set)) end
  return counts, last
end

-- Those of `indices` that are in the set, or those that are not.
local function only(indices, set, wanted)
  local out = {}
  for _, index in ipairs(indices) do
    if (set[index] or false) == wanted then out[#out + 1] = index end
  end
  return out
end

-- Gives the words for the stored answer (index:use, with a `c` where this use consumed it), the uses, and the consumed ones.
local function consume(indices)
  local counts, last = count_uses(indices)
  local gone, words = only(indices, last, true), {}
  for i, index in ipairs(indices) do words[i] = index .. ':' .. counts[i] .. (last[index] and 'c' or '') end
  unlive(gone)
  bump('consumed', #gone)
  return words, counts, gone
end

-- Lent: the use counts when it is acknowledged.
local function lend_out(indices, lease, length, time)
  local counts, words = next_uses(indices), {}
  for i, index in ipairs(indices) do words[i] = index .. ':' .. counts[i] end
  lend(lease, indices, length, time)
  return words, counts
end

-- The reader is done: the use counts, and what had its last one is consumed. Gives how many; nil where the lease has ended.
local function acknowledge(lease)
  local indices = end_lease(lease)
  if not indices then return nil end
  cut.note(indices)
  local _, last = count_uses(indices)
  local gone = only(indices, last, true)
  bump('consumed', #gone)
  drop(gone)
  drop(enlive(only(indices, last, false)))
  return #indices
end

-- A batch that is to be fetched, or asked for again, is held. One that takes nothing and comes with its bytes needs no hold.
local function hand_out(indices, n, with_bytes, lease, length, time)
  local words, counts, gone = {}, {}, {}
  if (settings.consume or 0) > 1 or age.is_kept() then cut.note(indices) end
  if lease then
    words, counts = lend_out(indices, lease, length, time)
  elseif settings.consume then
    words, counts, gone = consume(indices)
  elseif not with_bytes then
    words = indices
  end
  if #words > 0 then hold(lane, indices, time) end
  age.give(indices)
  drop(gone)
  bump('sample_calls', 1)
  bump('samples_returned', n)
  limit.sampled(n)
  return words, counts
end
