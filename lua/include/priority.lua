-- priority: what each record weighs, where the sampler asks for it. By identity: an index that is not stored has none.
-- @include bucket
-- @include rank
-- `priorities`  index -> "<k> <place>" of one that can be drawn, or "= <priority>" of one that cannot now: priority 0, lent, or
--               out of the buffer with its bytes still there
local priority = {}

-- Where the home and the spot do not say the same, somebody has written there by hand: the record is as good as not there.
local function load_seats(wanted)
  local keys = {}
  for i, at in ipairs(wanted) do keys[i] = at.k .. ' ' .. int(at.spot) end
  for i, text in ipairs(ask_many('HMGET', places, keys)) do
    local at = wanted[i]
    seats[at.k] = seats[at.k] or {}
    if seats[at.k][at.spot] == nil then take_in(at.k, at.spot, text) end
    local there = seats[at.k][at.spot]
    homes[at.index] = there and there.index == at.index and there
  end
end

-- The records of many indices are known from now on.
function priority.load(indices)
  local unknown, wanted = {}, {}
  for _, index in ipairs(indices) do
    if homes[index] == nil then unknown[#unknown + 1] = index end
  end
  for i, text in ipairs(ask_many('HMGET', priorities, unknown)) do
    local index, k, spot = unknown[i], (text or ''):match('^(%S+) (%S+)$')
    homes[index] = k == '=' and weight.is_priority(spot) and {index = index, p = spot}
    if tonumber(k) and weight.is_priority(spot) then
      wanted[#wanted + 1] = {index = index, k = tonumber(k), spot = tonumber(spot)}
    end
  end
  load_seats(wanted)
end

-- The priority of a stored record as text, or nil. It must be loaded.
function priority.of(index)
  return homes[index] and homes[index].p or nil
end

function priority.is_seated(index)
  return homes[index].k ~= nil
end

-- Can be drawn from now on, unless the priority is 0. Gives whether it can.
function priority.enter(index, p)
  local record = homes[index] or {index = index}
  record.p, homes[index], new_homes[index] = p, record, true
  rank.set(index, p)
  if tonumber(p) == 0 and weight.hides() then return false end
  if weight.in_bins() then bin.sit(record) end
  return true
end

-- Cannot be drawn any more. Gives whether it could.
function priority.leave(index)
  local record = homes[index]
  rank.drop(index)
  if not weight.in_bins() then return true end
  if not record or not record.k then return false end
  bin.stand_up(record)
  new_homes[index] = true
  return true
end

-- Another priority that leaves it in its place. Gives whether that is so.
function priority.stay(index, p)
  if not homes[index].k or tonumber(p) == 0 or not bin.change(homes[index], p) then return false end
  rank.set(index, p)
  return true
end

-- Of one that cannot be drawn now, for when it can.
function priority.keep(index, p)
  homes[index].p, new_homes[index] = p, true
end

function priority.forget(indices)
  for _, index in ipairs(indices) do homes[index], new_homes[index] = false, true end
end

function priority.write()
  bin.write()
  local set, gone = {}, {}
  for index in pairs(new_homes) do
    local record = homes[index]
    if record then
      set[#set + 1], set[#set + 2] = index, record.k and record.k .. ' ' .. int(record.spot) or '= ' .. record.p
    else
      gone[#gone + 1] = index
    end
  end
  call_many('HSET', priorities, set)
  call_many('HDEL', priorities, gone)
  rank.write()
  new_homes = {}
end
