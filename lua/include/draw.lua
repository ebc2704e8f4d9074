-- draw: the samplers. A new one is one function here, one class in redis_replay/samplers.py and one rule in the tests' model.
-- @include live
-- @include weighted
local samplers = {}

-- n different ranks: the first n places of a shuffle that is only made where it is looked at.
local function different_ranks(n, size)
  local moved, out = {}, {}
  for i = 0, n - 1 do
    local j = i + random_below(size - i)
    out[i + 1] = moved[j] or j
    moved[j] = moved[i] or i
  end
  return out
end

function samplers.Uniform(n, distinct)
  local size = count('sampleable_size')
  if distinct then return live_of(different_ranks(n, size)) end
  local ranks = {}
  for i = 1, n do ranks[i] = random_below(size) end
  return live_of(ranks)
end

-- Without replacement each is drawn from what is left: the last of a bin moves to the place of who was drawn, here alone.
function samplers.Prioritized(n, distinct)
  local list, out = weighted.full(), {}
  for i = 1, n do
    local record, b, spot = weighted.one(list)
    if not record then return nil, places end
    out[i] = record.index
    if distinct then
      b.n = b.n - 1
      b.moved[spot] = b.moved[b.n] or b.n
      if list[1].n == 0 then weighted.sized(list) end
    end
  end
  return out
end

function samplers.MaxHeap(n)
  return rank.ends(n, 'ZREVRANGE')
end

function samplers.MinHeap(n)
  return rank.ends(n, 'ZRANGE')
end

function samplers.Freshest(n)
  age.write()
  local out = redis.call('ZREVRANGE', versions, 0, n - 1)
  for i, member in ipairs(out) do out[i] = member:match('^0*(%d+)$') or member end
  return out
end

function samplers.Fifo(n)
  return live_end(n, 1)
end

function samplers.Lifo(n)
  return live_end(n, -1)
end

-- A batch never holds a record twice, except that of a draw with replacement.
local function is_distinct()
  return settings.consume ~= nil or not settings.sampler:find('replacement=True', 1, true)
end

local function draw(n)
  return samplers[settings.sampler:match('^%a+')](n, is_distinct())
end
