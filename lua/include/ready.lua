-- ready: one rule for draw, wake and can_sample, so that what wakes is what would succeed.
-- @include line

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

-- When the first of the turns ahead of `lane` ends, in microseconds; 0 if there is none.
local function turn_ahead(line, lane)
  local turn = 0
  for _, w in ipairs(line) do
    if w.lane == lane then break end
    if w.turn > 0 and (turn == 0 or w.turn < turn) then turn = w.turn end
  end
  return turn
end

-- Shut now, or shut once since the caller's wait began under `shutdowns` (-1: it has not begun).
local function is_shut(shutdowns)
  return settings.state == 'shut' or (shutdowns >= 0 and shutdowns ~= tonumber(settings.shutdowns))
end
