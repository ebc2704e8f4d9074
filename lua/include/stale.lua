-- stale: what is too old to be handed out: older than the buffer's version by more than max_staleness.
-- @include hold
local stale = {}

-- The least version that may be handed out while the buffer has this one.
function stale.floor(version)
  local most = age.limit()
  return most and math.max(0, version - most) or 0
end

-- At most n of the records that are there and too old under this version, oldest version first.
function stale.overdue(version, n)
  local floor = stale.floor(version)
  if floor == 0 then return {} end
  age.write()
  local out = redis.call('ZRANGEBYSCORE', versions, 0, '(' .. int(floor), 'LIMIT', 0, int(n))
  for i, member in ipairs(out) do out[i] = member:match('^0*(%d+)$') or member end
  return out
end

-- How many of n new records are too old already. `origin`: see age.lua.
function stale.arriving(origin, n)
  local floor, words, late = stale.floor(count('version')), split(origin), 0
  if floor == 0 or #words < 2 then return 0 end
  if #words == 2 then return tonumber(words[2]) < floor and n or 0 end
  for i = 2, #words do late = late + (tonumber(words[i]) < floor and 1 or 0) end
  return late
end

-- Those of `indices` that are too old now, as a set: some came back from a reader.
function stale.set(indices)
  local floor, out = stale.floor(count('version')), {}
  if floor == 0 then return out end
  for i, version in ipairs(age.of(indices)) do out[indices[i]] = version and version < floor or nil end
  return out
end

-- Live and hidden ones are dropped and counted.
function stale.drop(indices)
  if #indices == 0 then return end
  unlive(indices)
  bump('stale', #indices)
  limit.left(#indices)
  age.lose(indices, 'stale')
  drop(indices)
end
