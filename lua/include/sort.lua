-- sort: blocks that were changed go into the bins where they belong.
-- @include bucket
-- @include opened

local function sit(b, k)
  local to = bin.all()[k] or bin.new(k, 0, 0, 0)
  bin.all()[k], b.k, b.nth = to, k, to.n
  seat.set(k, to.n, b.number)
  to.n = to.n + 1
  bin.add(k, b.sum, b.live)
end

-- The last one of its bin has its place from now on.
local function stand_up(b)
  local k, nth, from = b.k, b.nth, bin.all()[b.k]
  b.k, b.nth = 0, -1
  if not from or from.n == 0 then return end
  local last = from.n - 1
  local id = nth < last and seat.get(k, last)
  if id then
    block.load({id})
    seat.set(k, nth, id)
    local mover = block.open(id)
    if mover then mover.nth = nth end
    if mover and not mover.is_touched then block.close(mover) end
  end
  seat.set(k, last, nil)
  from.n = last
  bin.add(k, -b.counted, -b.counted_live)
  if last == 0 then from.sum = 0 end
end

-- Of a block that was changed: into the bin where it belongs now.
local function settle(b)
  local is_in, was_idle = b.nth >= 0, b.nth < 0 and block.text(b.number) and 1 or 0
  local finish = is_in and bin.finish(b.k)
  b.sum = block.total(block.weights(b.text)) -- anew, so that no rounding is carried along
  if b.live == 0 then
    if is_in then stand_up(b) end
  elseif not is_in or b.sum > finish or b.sum <= finish / 2 then
    if is_in then stand_up(b) end
    sit(b, bin.of(b.sum))
  elseif bin.all()[b.k] then
    bin.add(b.k, b.sum - b.counted, b.live - b.counted_live)
  end
  block.close(b)
  local idle = b.nth < 0 and b.stored > 0 and 1 or 0
  if idle ~= was_idle then bin.add_idle(idle - was_idle) end
end

function bin.settle()
  bin.all()
  for _, b in ipairs(block.take_touched()) do settle(b) end
end
