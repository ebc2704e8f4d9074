-- lease: what a draw lent to a reader. Nobody else may draw it until it is acknowledged, released, or the lease runs out.
-- @include live
-- @include stale
-- Records whose leases one script ends.
local function many()
  return (weight.is_used() or age.is_kept()) and 5000 or 20000
end

local LEASES = 1000 -- leases that one script reclaims

-- Puts indices of a buffer that consumes back into the live set, each in its place. Those that eviction has passed (where the
-- oldest go first) count as evicted instead, and those that are too old by now as stale: they are given back, since their bytes
-- are to go.
local function enlive(indices)
  local members, back, passed, old = {}, {}, {}, {}
  local late = stale.set(indices)
  for _, index in ipairs(indices) do
    if tonumber(index) < count('first') then
      passed[#passed + 1] = index
    elseif late[index] then
      old[#old + 1] = index
    else
      members[#members + 1], members[#members + 2] = index, index
      back[#back + 1] = index
    end
  end
  call_many('ZADD', order, members)
  count_in(back)
  age.come(back)
  bump('evicted', #passed)
  bump('stale', #old)
  limit.left(#passed + #old)
  for _, index in ipairs(old) do passed[#passed + 1] = index end
  return passed
end

local function lend(lease, indices, length, time)
  unlive(indices)
  bump('leased', #indices)
  redis.call('ZADD', leases, int(time + length), lease)
  redis.call('HSET', leased, lease, int(length) .. ':' .. int(count('era')) .. ' ' .. table.concat(indices, ' '))
end

-- Ends a lease. Gives its indices, and the rate limiter's era when it began; nil where it has ended before.
local function end_lease(lease)
  local text = redis.call('HGET', leased, lease)
  redis.call('ZREM', leases, lease)
  redis.call('HDEL', leased, lease)
  if not text then return nil end
  local indices = split(text)
  local era = table.remove(indices, 1):match(':(%d+)$')
  bump('leased', -#indices)
  return indices, '-' .. (era or '')
end

-- The records go back, as if they had not been handed out. Gives how many; nil where the lease has ended before.
local function give_back(lease)
  local indices, era = end_lease(lease)
  if not indices then return nil end
  drop(enlive(indices))
  bump('sample_calls', -1)
  bump('samples_returned', -#indices)
  limit.undone(#indices, #indices, era)
  return #indices
end

-- When the first lease ends, in microseconds; 0: there is none.
local function first_lease_end()
  if count('leased') == 0 then return 0 end
  return tonumber(redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2] or 0)
end

-- Leases that ran out.
local function reclaim_leases(time)
  if count('leased') == 0 then return end
  local done = 0
  for _, lease in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', int(time), 'LIMIT', 0, LEASES)) do
    done = done + (give_back(lease) or 0)
    if done >= many() then break end
  end
  bump('reclaimed', done)
end

-- Ends the leases in ARGV from `low` on, at most so many records, by `finish`. Gives how many it ended, and how many had ended.
local function end_leases(low, finish)
  local ended, late, done = 0, 0, 0
  for i = low, #ARGV do
    local n = finish(ARGV[i])
    if n then ended, done = ended + 1, done + n else late = late + 1 end
    if done >= many() then break end
  end
  return ended, late
end
