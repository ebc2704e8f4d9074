-- wake: the last step of every script that changes anything or ends a wait.
-- @include ready

-- A notice is a hint; who gets it runs its script again: at once, or after `us` microseconds.
local function tell(w, message, us)
  return redis.call('PUBLISH', w.channel, message .. ' ' .. w.lane .. (us and ' ' .. int(us) or ''))
end

-- A notice that reached nobody gives no turn: the next in line has it. Until it polls again the lost one is passed over.
local function notify(w, time)
  w.turn, w.standby = time + w.turn_us, 0
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

-- Whom nothing wakes runs its script when a turn before it, or a lease, has run out, should their owner have died.
local function stand_by(w, again, time)
  if again == 0 or (w.standby > 0 and w.standby <= again) then return end
  w.standby = again
  write_waiter(w.lane, w)
  tell(w, 'standby', math.max(1, again - time))
end

-- The rule of `owed_ahead`, for each waiter in turn: what those of its side ahead of it are about to take is not there for it.
local function wake_line(time)
  local lease, sides = first_lease_end(), {}
  for _, side in ipairs({'r', 'w'}) do sides[side] = {owed = 0, blocked = false, again = lease} end
  for _, w in ipairs(read_line(time)) do
    local s = sides[w.side]
    if w.turn > 0 then
      s.owed, s.again = s.owed + w.take, sooner(s.again, w.turn)
    elseif w.lost == 0 and not (s.blocked and w.take > 0) then
      if finds_enough(w, s.owed) then
        if notify(w, time) then s.owed, s.again = s.owed + w.take, sooner(s.again, w.turn) end
      elseif w.take == 0 then
        stand_by(w, lease, time)
      else
        s.blocked = blocks(w)
        if s.blocked then stand_by(w, s.again, time) end
      end
    end
  end
end

-- For what concerns everybody, or all of a side: shut down, deleted. They stand in the line no more.
local function wake_all(time, side)
  for _ = 1, redis.call('ZCARD', waiters) + 1, LINE do
    for _, w in ipairs(read_line(time)) do
      if w.side == (side or w.side) then
        tell(w, 'wake')
        leave_line(w.lane)
      end
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
