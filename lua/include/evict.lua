-- evict: makes room. The oldest live records go first.
-- @include live
-- @include hold

local function evict(n)
  if n <= 0 then return end
  bump('evicted', n)
  local plain = not (settings.consume or weight.is_used() or age.is_kept())
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
  if settings.consume then call_many('ZREM', order, indices) end
  advance_first(math.max(first, count('first')))
  drop(indices)
end

local function make_room()
  evict(present() + count('leased') - settings.capacity)
end
