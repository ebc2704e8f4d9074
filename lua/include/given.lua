-- given: the priorities that a write or an update brings, and what new records have that are given none.
-- @include priority

-- The largest ever set, or nil before any.
function priority.largest()
  local p = redis.call('HGET', config, 'max_priority')
  return weight.is_priority(p) and p or nil
end

-- What new records have that are given none: the largest ever set, or that of those in the buffer; 1 before any.
function priority.default()
  if settings.sampler:find('within_buffer=True', 1, true) then
    return rank.priority('ZREVRANGE') or '1'
  end
  return priority.largest() or '1'
end

function priority.note_largest(given)
  local most, text = tonumber(priority.largest() or -1), nil
  for _, p in ipairs(given) do
    if tonumber(p) > most then most, text = tonumber(p), p end
  end
  if text then redis.call('HSET', config, 'max_priority', text) end
end

-- The priorities of n new records: `text` has one for each, one for all, or none. Nil where nothing goes by them.
function priority.spread(text, n)
  if not weight.is_used() then return nil end
  local given = split(text)
  if #given == 0 then given[1] = priority.default() else priority.note_largest(given) end
  for i = #given + 1, n do given[i] = given[1] end
  return given
end
