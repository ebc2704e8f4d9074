-- wake: the last step of every script that changes anything or ends a wait.
-- @include ready
local TURN_US = 500000

-- A notice is a hint without data; who gets it runs its script again.
local function tell(w, message)
  return redis.call('PUBLISH', w.channel, message .. ' ' .. w.lane)
end

-- A notice that reached nobody gives no turn: the next in line has it. Until it polls again the lost one is passed over.
local function notify(w, time)
  w.turn, w.standby = time + TURN_US, 0
  if tell(w, 'wake') == 0 then w.turn, w.lost = 0, 1 else bump('notices', 1) end
  write_waiter(w.lane, w)
  return w.lost == 0
end

-- The first taker that is not ready holds up the takers behind it, so that a large need never starves; but one
-- whose client is gone holds up nobody.
local function blocks(w)
  if redis.call('PUBSUB', 'NUMSUB', w.channel)[2] > 0 then return true end
  w.lost = 1
  write_waiter(w.lane, w)
  return false
end

-- The next in line runs its script when the turn before it has run out, should its owner have died.
local function stand_by(w)
  if w.standby == 1 then return end
  w.standby = 1
  write_waiter(w.lane, w)
  tell(w, 'standby')
end

-- The rule of `available`, for each waiter in turn: what those ahead of it are about to take is not there for it.
local function wake_line(time)
  local owed, turns, blocked = 0, 0, false
  for _, w in ipairs(read_line(time)) do
    if w.turn > 0 then
      owed, turns = owed + w.take, turns + 1
    elseif w.lost == 0 and not (blocked and w.take > 0) then
      if count('sampleable_size') - owed >= needed(w.need) then
        if notify(w, time) then owed, turns = owed + w.take, turns + 1 end
      elseif w.take > 0 then
        blocked = blocks(w)
        if blocked and turns > 0 then stand_by(w) end
      end
    end
  end
end

-- For what concerns everybody: shut down, deleted. The line is empty then.
local function wake_all(time)
  for _ = 1, redis.call('ZCARD', waiters) + 1, LINE do
    for _, w in ipairs(read_line(time)) do
      tell(w, 'wake')
      leave_line(w.lane)
    end
  end
end

local function shut(time, drained)
  redis.call('HSET', config, 'state', 'shut', 'drained', drained)
  redis.call('HINCRBY', config, 'shutdowns', 1)
  wake_all(time)
  redis.call('PUBLISH', events, 'shut')
end

local function wake(time)
  local empty = count('sampleable_size') + count('leased') == 0
  if settings.state == 'draining' and empty then return shut(time, '1') end
  wake_line(time)
end
