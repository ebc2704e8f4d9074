-- pick: records drawn by weight.
-- @include weighted
local views = {} -- number of a block -> its weights without what was drawn from it, and their sum

local function view_of(id)
  if views[id] == nil then
    block.load({id})
    local text = block.text(id)
    views[id] = text and {w = block.weights(text), sum = block.sum(text)}
  end
  return views[id]
end

-- It can not come again: its block may lie in another bin from now on.
local function leave_out(list, view, spot, b, nth)
  view.w[spot] = 0
  view.sum = block.total(view.w)
  if view.sum > b.finish / 2 then return end
  local id = b.moved[nth] or seat.get(b.k, nth)
  b.n = b.n - 1
  b.moved[nth] = b.moved[b.n] or seat.get(b.k, b.n)
  if view.sum > 0 then
    local k, to = bin.of(view.sum), nil
    for _, other in ipairs(list) do to = other.k == k and other or to end
    if not to then
      to = {k = k, n = 0, sum = 0, finish = bin.finish(k), moved = {}}
      list[#list + 1] = to
    end
    to.moved[to.n], to.n = id, to.n + 1
  end
  list.is_moved = true
  weighted.measure(list)
end

-- The spot of a block that a part of its sum falls on.
local function spot_of(w, at)
  for i = 1, block.SIZE do
    at = at - w[i]
    if at < 0 then return i end
  end
  for i = block.SIZE, 1, -1 do -- rounding
    if w[i] > 0 then return i end
  end
end

-- With replacement. Adds indices to a list, and their priorities to another. Gives a key where what is stored makes no sense.
local function draw_again(list, parts, n, out, bytes)
  local ids, ups = weighted.fall_many(list, parts)
  if not ids then return places end
  for i = 1, #ids do
    local id = ids[i]
    local text = block.text(id)
    if not text then return priorities end
    if ups[i] < block.sum(text) then
      local spot = spot_of(block.weights(text), ups[i])
      out[#out + 1], bytes[#bytes + 1] = int(id * block.SIZE + spot - 1), block.bytes(text, spot - 1)
      if #out == n then break end
    end
  end
  return nil
end

-- None twice: once a block has moved, numbers fall elsewhere.
local function draw_once(list, parts, n, out, bytes)
  local ids, ups, found, nths
  if not list.is_moved then ids, ups, found, nths = weighted.fall_many(list, parts) end
  if not ids and not list.is_moved then return places end
  for i, part in ipairs(parts) do
    local b, nth, up, id
    if list.is_moved then
      b, nth, up = weighted.fall(list, part)
      id = b.moved[nth] or seat.get(b.k, nth)
    else
      b, nth, up, id = found[i], nths[i], ups[i], ids[i]
    end
    local view = id and view_of(id)
    if not view then return id and priorities or places end
    if up < view.sum then
      local spot = spot_of(view.w, up)
      out[#out + 1], bytes[#bytes + 1] = int(id * block.SIZE + spot - 1), block.bytes(block.text(id), spot - 1)
      leave_out(list, view, spot, b, nth)
      if #out == n or not list[1] then break end
    end
  end
  return nil
end

-- n indices, and their priorities; nil and a key where what is stored there makes no sense.
local function pick(n, distinct)
  local list, out, bytes, tries = weighted.full(), {}, {}, 0
  while #out < n do
    local parts = random_parts(math.ceil((n - #out) * 1.25) + 4)
    tries = tries + #parts
    if not list[1] or tries > 40 * n + 100 then return nil, priorities end -- so many coins never fall wrong
    local broken = (distinct and draw_once or draw_again)(list, parts, n, out, bytes)
    if broken then return nil, broken end
  end
  out.bytes = table.concat(bytes)
  return out
end
