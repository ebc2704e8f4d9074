-- priority: what each record weighs, where the sampler asks for it. By identity: an index that is not stored has none.
-- @include bucket
-- `priorities`  index -> "<k> <place>" of one that can be drawn, or "= <priority>" of one that cannot now: priority 0, lent,
--               or out of the buffer with its bytes still there
-- `ranked`      zset: index -> priority, where the least or the largest of those in the buffer is asked for
local priority = {}
local homes, new_homes, scores, out_of_rank = {}, {}, {}, {}

function priority.read_home(text)
  local k, place = (text or ''):match('^(-?%d+) (%d+)$')
  if k then return {k = tonumber(k), place = tonumber(place)} end
  local p = (text or ''):match('^= (%S+)$')
  return weight.is_priority(p) and {priority = p} or false
end

function priority.load(indices)
  local wanted, keys = {}, {}
  for _, index in ipairs(indices) do
    if homes[index] == nil then wanted[#wanted + 1] = index end
  end
  for i, text in ipairs(ask_many('HMGET', priorities, wanted)) do
    local home = priority.read_home(text)
    homes[wanted[i]] = home
    if home and home.k then keys[#keys + 1] = bin.seat_key(home.k, home.place) end
  end
  bin.load_seats(keys)
end

function priority.set_home(index, home)
  homes[index], new_homes[index] = home, true
end

-- The priority of a stored record as text, or nil. Its home must be loaded.
function priority.of(index)
  local home = homes[index]
  local there = home and home.k and bin.seat(home.k, home.place) or home
  return there and there.priority
end

-- Can be drawn from now on, unless the priority is 0. Gives whether it can.
function priority.enter(index, p)
  if tonumber(p) == 0 then
    priority.set_home(index, {priority = p})
    return false
  end
  if weight.is_ranked() then scores[index], out_of_rank[index] = p, nil end
  local k, part = bin.of(weight.of(p))
  priority.set_home(index, {k = k, place = bin.sit(k, part, {index = index, priority = p})})
  return true
end

-- Cannot be drawn any more. Gives whether it could.
function priority.leave(index)
  local home, p = homes[index], priority.of(index) or '1' -- or: somebody took its place away by hand
  if weight.is_ranked() then scores[index], out_of_rank[index] = nil, true end
  if not home or not home.k then return false end
  local _, part = bin.of(weight.of(p))
  local mover = bin.stand_up(home.k, part, home.place)
  if mover then priority.set_home(mover.index, {k = home.k, place = home.place}) end
  priority.set_home(index, {priority = p})
  return true
end

-- Another priority in the same bin leaves it in its place. Gives whether that is so.
function priority.stay(index, p)
  local home = homes[index]
  if not home.k or tonumber(p) == 0 then return false end
  local k, part = bin.of(weight.of(p))
  local had = priority.of(index)
  if k ~= home.k or not had or not bin.all()[k] then return false end
  local _, before = bin.of(weight.of(had))
  bin.change(k, home.place, part - before, {index = index, priority = p})
  if weight.is_ranked() then scores[index] = p end
  return true
end

function priority.write()
  bin.write()
  bin.write_changes(priorities, new_homes, function(index)
    local home = homes[index]
    return home and (home.k and home.k .. ' ' .. int(home.place) or '= ' .. home.priority)
  end)
  local pairs_, gone = {}, {}
  for index, p in pairs(scores) do pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = p, index end
  for index in pairs(out_of_rank) do gone[#gone + 1] = index end
  call_many('ZADD', ranked, pairs_)
  call_many('ZREM', ranked, gone)
  new_homes, scores, out_of_rank = {}, {}, {}
end

function priority.forget(indices)
  for _, index in ipairs(indices) do priority.set_home(index, false) end
end
