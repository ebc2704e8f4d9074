-- ready: one rule for draw, write, wait and wake, so that what wakes is what would succeed; and what happens if it is not so.
-- @include line
-- @include lease
-- @include alive

-- What must be there for a draw with this need. A draining buffer gives out the rest as a short batch.
local function needed(need)
  if settings.state ~= 'draining' or count('leased') > 0 then return need end
  return math.max(1, math.min(need, count('sampleable_size')))
end

-- Whether draws take something away from others.
local function is_taken()
  return settings.consume ~= nil or limit.is_spent()
end

-- What there is for a side, less what is owed to others of it.
local function there_is(side, owed)
  if side == 'w' then return count('leased') < settings.capacity and math.max(0, limit.inserts(owed, hunger)) or 0 end
  local there = count('sampleable_size') - (settings.consume and owed or 0)
  return math.max(0, limit.samples(there, owed))
end

-- Whether a waiter, or a call with its side and need, would find enough behind what is owed.
local function finds_enough(w, owed)
  return there_is(w.side, owed) >= (w.side == 'r' and needed(w.need) or w.need)
end

-- What is owed to those ahead of `lane`. Who takes nothing leaves out only what the notified ones are about to take.
local function owed_ahead(line, lane, side, take)
  local owed = 0
  for _, w in ipairs(line) do
    if w.lane == lane then break end
    if w.side == side and w.lost == 0 and (w.turn > 0 or take > 0) then owed = owed + w.take end
  end
  return owed
end

-- Shut now, or shut once since the caller's wait began under `shutdowns` (-1: it has not begun). A buffer that is
-- draining takes no writes.
local function is_shut(shutdowns, side)
  return settings.state == 'shut' or (shutdowns >= 0 and shutdowns ~= tonumber(settings.shutdowns))
    or (side == 'w' and settings.state ~= 'open')
end

-- The sooner of two times, where 0 is never.
local function sooner(a, b)
  if a == 0 or b == 0 then return math.max(a, b) end
  return math.min(a, b)
end

-- What is said to who does not find enough. `again`: when there may be more without anybody's doing, or 0.
local function lacks(have, need, again, time)
  local idle, alive = liveness(time)
  return {'NOT_READY', int(have), int(need), settings.shutdowns, int(again > 0 and math.max(1, again - time) or 0),
    idle, alive, int(count('leased')), int(count('hidden')), int(count('sampleable_size')), limit.word()}
end

-- Not enough: the caller joins the line (a poll keeps its place), or leaves it. Gives the answer, with the time until there
-- may be more without anybody's doing, as a turn ahead of it or a lease ends: then it may look again, and needs no standby.
local function not_ready(line, lane, have, wish, time)
  local again = first_lease_end()
  for _, w in ipairs(line) do
    if w.lane == lane then break end
    if w.side == wish.side then again = sooner(again, w.turn) end
  end
  if wish.wait then
    join_line(lane, {side = wish.side, need = wish.need, take = wish.take, since = time, ends = time + 3 * wish.poll_us,
      turn = 0, standby = again, lost = 0, turn_us = wish.turn_us, channel = wish.channel})
  else
    leave_line(lane)
  end
  return lacks(have, wish.need, again, time)
end
