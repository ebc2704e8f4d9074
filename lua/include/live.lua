-- live: which indices may be drawn. One place knows both forms:
--   `order` (a buffer that consumes, or whose remover is not Fifo): a zset of the live indices;
--   a range (any other): first..last without `holes` and what is skipped, so that a ring needs no index at all. `first` is
--   never skipped.
-- Both hold the hidden ones, too.
-- @include state

-- Ranks[i..j], ascending and different, all lie at the places low..high, with `before` live indices below and `gaps` holes
-- inside: their indices go into `found`. Parts without a hole are plain, those with few are walked, others are halved. A rank
-- costs one to four looks at the server, whatever the size.
local function resolve(found, ranks, i, j, low, high, before, gaps)
  if i > j then return end
  if gaps <= 8 * (j - i + 1) and gaps < 1000 then
    local taken = gaps > 0 and redis.call('ZRANGEBYSCORE', holes, int(index_at(low)), int(index_at(high))) or {}
    local at, hole = low - before, 1
    for k = i, j do
      while taken[hole] and place(tonumber(taken[hole])) <= at + ranks[k] do at, hole = at + 1, hole + 1 end
      found[ranks[k]] = int(index_at(at + ranks[k]))
    end
    return
  end
  local middle = low + math.floor((high - low) / 2) -- low + high may pass 2^53
  local left = redis.call('ZCOUNT', holes, int(index_at(low)), int(index_at(middle)))
  local upto = before + middle - low + 1 - left
  local a, b = i, j + 1 -- the first rank of the right half
  while a < b do
    local c = math.floor((a + b) / 2)
    if ranks[c] < upto then a = c + 1 else b = c end
  end
  resolve(found, ranks, i, a - 1, low, middle, before, left)
  resolve(found, ranks, a, j, middle + 1, high, upto, gaps - left)
end

local function sorted(ranks)
  local out, different = {}, {}
  for i, r in ipairs(ranks) do out[i] = r end
  table.sort(out)
  for _, r in ipairs(out) do
    if r ~= different[#different] then different[#different + 1] = r end
  end
  return different
end

-- The first of the live indices, where they are all of a range without a break; else 0. (A range: see above.)
local function first_in_row()
  local first, last = count('first'), count('last')
  local in_row = not has_order() and place(last) - place(first) == last - first and redis.call('EXISTS', holes) == 0
  return in_row and first or 0
end

-- The live indices of many ranks (0 is the oldest). A range without holes, the common case, needs no look at the server.
local function live_of(ranks)
  local out, found, in_row = {}, {}, first_in_row()
  if in_row == 0 and not has_order() then
    local first, last, wanted = place(count('first')), place(count('last')), sorted(ranks)
    resolve(found, wanted, 1, #wanted, first, last, 0, last - first + 1 - present())
  end
  for i, r in ipairs(ranks) do
    out[i] = in_row > 0 and int(in_row + r) or found[r] or redis.call('ZRANGE', order, r, r)[1]
  end
  return out
end

local function live_at(r)
  return live_of({r})[1]
end

-- How many live indices are above `index`.
local function live_above(index)
  if has_order() then return redis.call('ZCOUNT', order, '(' .. int(index), '+inf') end
  local low = math.max(index, count('first') - 1)
  return place(count('last')) - place(low) - redis.call('ZCOUNT', holes, '(' .. int(low), '+inf')
end

-- n live indices from the oldest (step 1) or from the newest (step -1).
local function live_end(n, step)
  if has_order() then
    return redis.call(step > 0 and 'ZRANGE' or 'ZREVRANGE', order, 0, n - 1)
  end
  local ranks, start = {}, step > 0 and 0 or present() - 1
  for i = 0, n - 1 do ranks[i + 1] = start + i * step end
  return live_of(ranks)
end

local function is_present(index)
  if has_order() then return redis.call('ZSCORE', order, index) ~= false end
  local number = tonumber(index)
  return number >= count('first') and number <= count('last') and not is_skipped(number)
    and not redis.call('ZSCORE', holes, index)
end

-- `first` is the lowest index that eviction has not passed: in a range, the oldest live one. Holes below it mean
-- nothing; they go a few at a time.
local function advance_first(first)
  set_count('first', index_at(place(first - 1) + 1))
  if has_order() or redis.call('EXISTS', holes) == 0 then return end
  set_count('first', present() > 0 and tonumber(live_at(0)) or count('last') + 1)
  local stale = redis.call('ZCOUNT', holes, '-inf', '(' .. int(count('first')))
  if stale > 0 then redis.call('ZREMRANGEBYRANK', holes, 0, math.min(stale, 10000) - 1) end
end

-- `order`, or the range, holds these no more.
local function take_out(indices)
  if has_order() then
    call_many('ZREM', order, indices)
    return
  end
  local members = {}
  for i, index in ipairs(indices) do members[2 * i - 1], members[2 * i] = index, index end
  call_many('ZADD', holes, members)
  advance_first(count('first'))
end

-- Takes live and hidden indices out. Their bytes are another matter: see hold.lua.
local function unlive(indices)
  count_out(indices)
  take_out(indices)
end
