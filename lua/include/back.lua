-- back: what a draw did is undone, exactly. A record that has left since in another way stays gone.
-- @include evict

-- Of the records that the draw consumed, those nobody has removed since: alive again, or evicted if eviction has passed them.
local function revive(indices)
  local passed = {}
  for _, index in ipairs(indices) do
    if tonumber(index) < count('first') then
      passed[#passed + 1] = index
    else
      redis.call('ZADD', order, index, index)
      bump('sampleable_size', 1)
    end
  end
  bump('parting', -#indices)
  bump('consumed', -#indices)
  bump('evicted', #passed)
  return passed
end

-- `drawn`: what the draw was answered, a list of {index, consumed by it}; n: the batch as it was counted.
local function go_back(lane, drawn, n)
  local consumed, indices = {}, {}
  for i, record in ipairs(drawn) do
    local index = record[1]
    indices[i] = index
    if record[2] and redis.call('SREM', parting, index) == 1 then consumed[#consumed + 1] = index end
    if redis.call('HEXISTS', uses, index) == 1 and redis.call('HINCRBY', uses, index, -1) == 0 then
      redis.call('HDEL', uses, index)
    end
  end
  bump('sample_calls', -1)
  bump('samples_returned', -n)
  local passed = revive(consumed)
  unhold(lane, indices)
  drop(passed)
  make_room()
  if settings.state == 'shut' and settings.drained == '1' and #consumed > 0 then
    settings.state = 'draining'
    redis.call('HSET', config, 'state', 'draining', 'drained', '0')
  end
end
