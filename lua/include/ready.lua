-- ready: one rule for draw, wait and wake, so that what wakes is what would succeed; and what happens if it is not so.
-- @include line
-- @include lease
-- @include alive

-- What must be there for a call with this need. A draining buffer gives out the rest as a short batch.
local function needed(need)
  if settings.state ~= 'draining' or count('leased') > 0 then return need end
  return math.max(1, math.min(need, count('sampleable_size')))
end

-- What `lane` may count on: what is live, less what is owed to those ahead of it in the line. Who takes nothing
-- leaves out only what the notified ones are about to take.
local function available(line, lane, take)
  local owed = 0
  for _, w in ipairs(line) do
    if w.lane == lane then break end
    if w.lost == 0 and (w.turn > 0 or take > 0) then owed = owed + w.take end
  end
  return math.max(0, count('sampleable_size') - owed)
end

-- Shut now, or shut once since the caller's wait began under `shutdowns` (-1: it has not begun).
local function is_shut(shutdowns)
  return settings.state == 'shut' or (shutdowns >= 0 and shutdowns ~= tonumber(settings.shutdowns))
end

-- The sooner of two times, where 0 is never.
local function sooner(a, b)
  if a == 0 or b == 0 then return math.max(a, b) end
  return math.min(a, b)
end

-- Not enough: the caller joins the line (a poll keeps its place), or leaves it. Gives the answer, with the time until there
-- may be more without anybody's doing, as a turn ahead of it or a lease ends: then it may look again, and needs no standby.
local function not_ready(line, lane, have, wish, time)
  local again = first_lease_end()
  for _, w in ipairs(line) do
    if w.lane == lane then break end
    again = sooner(again, w.turn)
  end
  if wish.wait then
    join_line(lane, {need = wish.need, take = wish.take, ends = time + 3 * wish.poll_us, turn = 0,
      standby = again, lost = 0, channel = wish.channel})
  else
    leave_line(lane)
  end
  local idle, alive = liveness(time)
  return {'NOT_READY', int(have), int(wish.need), settings.shutdowns, int(again > 0 and math.max(1, again - time) or 0),
    idle, alive, int(count('leased'))}
end
