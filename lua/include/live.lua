-- live: which indices may be drawn. One place knows both forms:
--   `order` (a buffer that consumes): a zset of the live indices;
--   a range (any other): first..last without `holes`, so that a ring needs no index at all.
-- @include state

-- The live index of rank r (0 is the oldest). Bisection: the smallest x with r + 1 live indices up to it.
local function live_at(r)
  if settings.consume then return redis.call('ZRANGE', order, r, r)[1] end
  local first = int(count('first'))
  local low = first + r
  local high = low + redis.call('ZCARD', holes)
  while low < high do
    local middle = low + math.floor((high - low) / 2) -- low + high may pass 2^53
    local live = middle - first + 1 - redis.call('ZCOUNT', holes, first, int(middle))
    if live >= r + 1 then high = middle else low = middle + 1 end
  end
  return int(low)
end

-- The live indices of many ranks. A range without holes, the common case, needs no look at the server for each.
local function live_of(ranks)
  local out = {}
  local plain = not settings.consume and redis.call('EXISTS', holes) == 0
  local first = count('first')
  for i, r in ipairs(ranks) do out[i] = plain and int(first + r) or live_at(r) end
  return out
end

-- n live indices from the oldest (step 1) or from the newest (step -1).
local function live_end(n, step)
  if settings.consume then
    return redis.call(step > 0 and 'ZRANGE' or 'ZREVRANGE', order, 0, n - 1)
  end
  local ranks, start = {}, step > 0 and 0 or count('sampleable_size') - 1
  for i = 0, n - 1 do ranks[i + 1] = start + i * step end
  return live_of(ranks)
end

local function is_live(index)
  if settings.consume then return redis.call('ZSCORE', order, index) ~= false end
  local number = tonumber(index)
  return number >= count('first') and number <= count('last') and not redis.call('ZSCORE', holes, index)
end

-- `first` is the lowest index that eviction has not passed: in a range, the oldest live one. Holes below it mean
-- nothing; they go a few at a time.
local function advance_first(first)
  set_count('first', first)
  if settings.consume or redis.call('EXISTS', holes) == 0 then return end
  set_count('first', count('sampleable_size') > 0 and tonumber(live_at(0)) or count('last') + 1)
  local stale = redis.call('ZCOUNT', holes, '-inf', '(' .. int(count('first')))
  if stale > 0 then redis.call('ZREMRANGEBYRANK', holes, 0, math.min(stale, 10000) - 1) end
end

-- Takes live indices out of the live set. Their bytes are another matter: see hold.lua.
local function unlive(indices)
  bump('sampleable_size', -#indices)
  if settings.consume then
    call_many('ZREM', order, indices)
    return
  end
  local members = {}
  for i, index in ipairs(indices) do members[2 * i - 1], members[2 * i] = index, index end
  call_many('ZADD', holes, members)
  advance_first(count('first'))
end

-- Puts indices of a buffer that consumes back into the live set, each in its place. Those that eviction has passed count
-- as evicted instead: they are given back, since their bytes are to go.
local function enlive(indices)
  local members, passed = {}, {}
  for _, index in ipairs(indices) do
    if tonumber(index) < count('first') then
      passed[#passed + 1] = index
    else
      members[#members + 1], members[#members + 2] = index, index
    end
  end
  call_many('ZADD', order, members)
  bump('sampleable_size', #members / 2)
  bump('evicted', #passed)
  return passed
end
