-- draw: the selectors: which n records are drawn (as sampler) or go (as remover). A new one is one function here, one class in
-- redis_replay/samplers.py and one rule in the tests' model. They choose among what is live; hidden ones, which only a sampler
-- that goes by weight has, are in the order of all others, and have no weight.
-- @include live
-- @include pick
local samplers = {}
local RANDOM = {Uniform = true, Prioritized = true} -- those that need seeds

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
  local size = present()
  if distinct then return live_of(different_ranks(n, size)) end
  return live_of(random_many_below(n, size))
end

-- Without replacement fewer than n, where no more have a weight.
function samplers.Prioritized(n, distinct)
  bin.settle() -- what came back in this very script
  return pick(distinct and math.min(n, (bin.count())) or n, distinct)
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

local function is_random(selector)
  return RANDOM[selector:match('^%a+')] or false
end

-- n indices by the rule of a stored selector; or nil and the key that is broken.
local function select_by(selector, n, distinct)
  return samplers[selector:match('^%a+')](n, distinct)
end

-- The first live index, where a draw follows from its seeds, this and how many are live, so that a caller can work it out
-- (redis_replay/_foresight.py); else 0.
local function foreseeable()
  return settings.sampler == 'Uniform(replacement=True)' and not age.is_kept() and first_in_row() or 0
end

local function draw(n)
  return select_by(settings.sampler, n, is_distinct())
end
