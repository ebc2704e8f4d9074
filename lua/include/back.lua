-- back: what a draw did is undone, exactly. A record that has left since in another way stays gone.
-- @include evict
-- @include lease

-- `drawn`: what the draw was answered, a list of {index, consumed by it}; n: the batch as it was counted; `lease`: under
-- which it was lent, or nil; `era`: of the rate limiter, as it was then.
local function go_back(lane, drawn, n, lease, era)
  local consumed, indices = {}, {}
  if lease then
    for i, record in ipairs(drawn) do indices[i] = record[1] end
    unhold(lane, indices)
    give_back(lease)
    return
  end
  for i, record in ipairs(drawn) do
    local index = record[1]
    indices[i] = index
    if record[2] and redis.call('SREM', parting, index) == 1 then
      cut.note({index}, true)
      consumed[#consumed + 1] = index
    end
    if redis.call('HEXISTS', uses, index) == 1 then
      cut.note({index})
      if redis.call('HINCRBY', uses, index, -1) == 0 then bump('used', -redis.call('HDEL', uses, index)) end
    end
  end
  bump('sample_calls', -1)
  bump('samples_returned', -n)
  limit.undone(n, #consumed, era)
  bump('parting', -#consumed)
  bump('consumed', -#consumed)
  local passed = enlive(consumed)
  unhold(lane, indices)
  drop(passed)
  make_room_for(consumed)
  if settings.state == 'shut' and settings.drained == '1' and #consumed > 0 then
    settings.state = 'draining'
    redis.call('HSET', config, 'state', 'draining', 'drained', '0')
  end
end
