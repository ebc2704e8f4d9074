-- rank: the order of priorities, where the least or the largest of those in the buffer is asked for.
-- @include weight
-- `ranked`  zset: index -> priority, hidden ones too; the index in 16 digits, so that equals are in the order of their indices
local rank = {}
local ranked_new, ranked_gone = {}, {} -- index -> priority, index -> true: what `commit` writes

local function ranked_name(index)
  return string.format('%016.0f', index)
end

function rank.set(index, p)
  if weight.is_ranked() then ranked_new[index], ranked_gone[index] = p, nil end
end

function rank.drop(index)
  if weight.is_ranked() then ranked_new[index], ranked_gone[index] = nil, true end
end

function rank.write()
  local members, gone = {}, {}
  for index, p in pairs(ranked_new) do
    members[#members + 1], members[#members + 2] = string.format('%.17g', p), ranked_name(index)
  end
  for index in pairs(ranked_gone) do gone[#gone + 1] = ranked_name(index) end
  call_many('ZADD', ranked, members)
  call_many('ZREM', ranked, gone)
  ranked_new, ranked_gone = {}, {}
end

-- n indices from the least (ZRANGE) or from the largest (ZREVRANGE).
function rank.ends(n, command)
  rank.write()
  local out = redis.call(command, ranked, 0, n - 1)
  for i, member in ipairs(out) do out[i] = member:match('^0*(%d+)$') or member end
  return out
end

-- The priority at an end of those that are not hidden, or nil.
function rank.priority(command)
  rank.write()
  if command == 'ZRANGE' and weight.hides() then
    return redis.call('ZRANGEBYSCORE', ranked, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  local p = redis.call(command, ranked, 0, 0, 'WITHSCORES')[2]
  return (tonumber(p) ~= 0 or not weight.hides()) and p or nil
end
