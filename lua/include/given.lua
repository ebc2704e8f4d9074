-- given: the priorities that a write or an update brings, and what new records have that are given none.
-- @include priority

-- The largest ever set, as text, or nil before any above 0: new records are not hidden because of one that is.
function priority.largest()
  local p = redis.call('HGET', config, 'max_priority')
  return weight.is_priority(p) and p or nil
end

-- What new records have that are given none: the largest ever set, or that of those in the buffer; 1 before any.
function priority.default()
  if settings.sampler:find('within_buffer=True', 1, true) then
    return tonumber(rank.priority('ZREVRANGE') or 1)
  end
  return tonumber(priority.largest() or 1)
end

function priority.note_largest(given)
  local had = tonumber(priority.largest() or 0)
  local most = had
  for _, p in ipairs(given) do most = math.max(most, p) end
  if most > had then redis.call('HSET', config, 'max_priority', string.format('%.17g', most)) end
end

-- The priorities of n new records: `text` has one for each, one for all, or none. Nil where nothing goes by them.
function priority.spread(text, n)
  if not weight.is_used() then return nil end
  local given = split(text)
  for i, p in ipairs(given) do given[i] = tonumber(p) end
  if #given == 0 then given[1] = priority.default() else priority.note_largest(given) end
  for i = #given + 1, n do given[i] = given[1] end
  return given
end
