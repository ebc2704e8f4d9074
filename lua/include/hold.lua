-- hold: what a draw took or still has to fetch keeps its bytes until the lane's next request, or for 60 s.
-- @include cut
local HOLD_US = 60 * 1000000

-- The lowest index that is live and above `index`; above all that was ever given if none is.
local function next_live(index)
  local above = live_above(index)
  return above > 0 and tonumber(live_at(present() - above)) or count('last') + 1
end

-- Entries go one by one, which is slow; at once where they are known to be the oldest: no more stay than are live above. Up to
-- one that stays, or behind all: where an XDEL took the last entry of a node, a trim that ends before it leaves the node without
-- any entry, and there are servers that save such a node and refuse to load it (redis #15808).
-- No index may come twice here, or in what calls this: fewer would go than are counted.
local function delete_stored(indices)
  local top = 0
  for _, index in ipairs(indices) do top = math.max(top, tonumber(index)) end
  if #indices > 1 and live_above(top) == count('storage_size') - #indices then
    return redis.call('XTRIM', records, 'MINID', '0-' .. int(next_live(top)))
  end
  return delete_entries(indices)
end

-- A record's bytes and its uses go together.
local function forget(indices)
  if settings.consume and settings.consume > 1 then bump('used', -call_many('HDEL', uses, indices)) end
  if weight.is_used() then priority.forget(indices) end
  age.forget(indices)
  if cut.state() then call_many('HDEL', noted, indices) end
  bump('storage_size', -delete_stored(indices))
end

local function add_hold(indices)
  local pairs_ = {}
  for i, holders in ipairs(ask_many('HMGET', held, indices)) do
    pairs_[2 * i - 1], pairs_[2 * i] = indices[i], int((holders or 0) + 1)
  end
  call_many('HSET', held, pairs_)
end

-- The bytes of records that have left go at once, or when the last hold on them ends (parting).
local function drop(indices)
  cut.note(indices)
  add_hold(cut.keep(indices))
  if redis.call('EXISTS', held) == 0 then
    forget(indices)
    return
  end
  local free, stay = {}, {}
  for i, holders in ipairs(ask_many('HMGET', held, indices)) do
    local list = holders and stay or free
    list[#list + 1] = indices[i]
  end
  forget(free)
  bump('parting', call_many('SADD', parting, stay))
end

local function hold(lane, indices, time)
  add_hold(indices)
  redis.call('ZADD', holds, int(time + HOLD_US), lane)
end

-- One hold on each ends: those that nobody else holds and that have left lose their bytes. A draw with replacement holds a
-- record once, however often it gave it.
local function let_go(indices)
  local ended, pairs_, seen = {}, {}, {}
  for i, holders in ipairs(ask_many('HMGET', held, indices)) do
    local index = indices[i]
    if tonumber(holders or 1) > 1 then
      pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = index, int(holders - 1)
    elseif not seen[index] then
      ended[#ended + 1] = index
    end
    seen[index] = true
  end
  call_many('HSET', held, pairs_)
  call_many('HDEL', held, ended)
  if redis.call('EXISTS', parting) == 0 then return end
  local gone = {}
  for i, left in ipairs(ask_many('SMISMEMBER', parting, ended)) do
    if left == 1 then gone[#gone + 1] = ended[i] end
  end
  bump('parting', -call_many('SREM', parting, gone))
  forget(gone)
end

-- Ends a lane's hold on `indices`.
local function unhold(lane, indices)
  if redis.call('ZREM', holds, lane) == 1 then let_go(indices) end
end

-- What a dump has read, or will not read any more: at most n of it.
local function let_go_of_read(n)
  if count('parting') > 0 then let_go(cut.read_ones(n)) end
end
