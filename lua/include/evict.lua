-- evict: makes room before what is written comes in: the remover says who goes, of the live and the hidden ones.
-- @include draw
-- @include hold

local function evict_oldest(n)
  bump('evicted', n)
  limit.left(n)
  local plain = not (has_order() or weight.is_used() or age.is_kept() or cut.state())
  if plain and redis.call('EXISTS', holes) == 0 and redis.call('EXISTS', held) == 0 then
    local first = index_at(place(count('first')) + n)
    bump('sampleable_size', -n)
    set_count('first', first)
    bump('storage_size', -redis.call('XTRIM', records, 'MINID', '0-' .. int(first)))
    return
  end
  local indices = live_end(n, 1)
  local first = tonumber(indices[n]) + 1
  count_out(indices)
  age.lose(indices, 'evicted')
  if has_order() then call_many('ZREM', order, indices) end
  if settings.remover == 'Fifo()' then advance_first(math.max(first, count('first'))) end
  drop(indices)
end

local function evict(indices)
  bump('evicted', #indices)
  limit.left(#indices)
  age.lose(indices, 'evicted')
  unlive(indices)
  drop(indices)
end

-- Whom the remover chooses; and where it knows too few, since hidden ones have no weight, the oldest of the others. What
-- somebody wrote by hand among the priorities is not chosen.
local function chosen(n)
  if not weight.is_used() then return select_by(settings.remover, n, true) end
  local out, seen = {}, {}
  local function take(indices)
    for _, index in ipairs(indices) do
      if #out < n and not seen[index] and is_present(index) then out[#out + 1], seen[index] = index, true end
    end
  end
  take(select_by(settings.remover, n, true) or {})
  if #out < n then take(live_end(n, 1)) end
  return out
end

-- How many of those that are present have no room beside n new ones.
local function excess(n)
  return math.min(present(), present() + count('leased') + n - settings.capacity)
end

-- For n new ones, which are not chosen themselves. `seed`: six numbers for a random remover, or empty.
local function make_room(n, seed)
  local over, random, numbers = excess(n), is_random(settings.remover), split(seed)
  if over <= 0 then return end
  if settings.remover == 'Fifo()' or (random and #numbers < 6) then return evict_oldest(over) end
  if random then seed_from(numbers, 1) end
  evict(chosen(over))
end

-- Of a write that is larger than the room there is, the last records stay.
local function keep_tail()
  if excess(0) > 0 then evict_oldest(excess(0)) end
end

-- For `back`, which an undone draw gave back. Nobody sends a seed for that: a random remover takes these, the first ones.
local function make_room_for(back)
  local over = excess(0)
  if over <= 0 then return end
  if not is_random(settings.remover) then return make_room(0, '') end
  local gone = {}
  for i = 1, math.min(over, #back) do gone[i] = back[i] end
  evict(gone)
end
