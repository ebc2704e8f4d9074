-- sound: what no script has left behind like that: values that somebody wrote by hand, keys that somebody deleted.
-- @include skipped
-- @include sizes
-- @include limit
local NUMBERS = {'capacity', 'shutdowns', 'record_bytes'}
local MOST, STEP = 9007199254740992, 20000 -- 2^53; records of one write, which may be there before room was made for them

local function is_whole(x)
  x = tonumber(x)
  return x and x % 1 == 0 and math.abs(x) <= MOST
end

-- What no script of ours has written, as an answer. A script that went on with it might fail halfway, or never end.
local function unsound()
  for _, name in ipairs(NUMBERS) do
    if not is_whole(settings[name]) then return {'DAMAGED', '-', config, 'has no number as ' .. name, 'a whole one'} end
  end
  for i, name in ipairs(COUNTERS) do
    local sound
    if i <= TOTALS then sound = is_whole(loaded[name]) else sound = settings[name]:find('^%d+$') end
    if not sound then return {'DAMAGED', '-', counters, 'has no number as ' .. name, 'a whole one'} end
  end
  if settings.capacity < 1 then return {'DAMAGED', '-', config, 'has no room as capacity', 'at least 1'} end
  if not settings.consume and settings.consume_after_n_samples ~= 'None' then
    return {'DAMAGED', '-', config, 'has no number as consume_after_n_samples', 'a whole one, or None'}
  end
  local wrong = weight.unsound()
  if wrong then return {'DAMAGED', '-', config, 'has no sampler of this version as ' .. wrong, 'one'} end
  if not limit.is_sound() then
    return {'DAMAGED', '-', config, 'has no numbers of a rate limiter as law', 'seven'}
  end
  if not age.is_sound() then
    return {'DAMAGED', '-', config, 'has no number as max_staleness', 'a whole one, or None'}
  end
  local inside = count('sampleable_size') + count('hidden') + count('leased')
  if count('first') > count('last') + 1 or inside > settings.capacity + STEP then
    return {'DAMAGED', '-', counters, 'has impossible sizes', 'what fits the stream'}
  end
  if settings.skipped and not read_ranges(settings.skipped) then
    return {'DAMAGED', '-', config, 'has no ranges as skipped', 'ranges up to the last index'}
  end
  return nil
end

local function incomplete_priorities()
  local live = count('sampleable_size')
  local drawable, all, pieces = bin.count()
  local n = redis.call('HLEN', priorities)
  if n > 0 and all == 0 then return wrong_size(buckets, 0, n) end
  if n ~= all then return wrong_size(priorities, n, all) end
  if weight.in_bins() and drawable ~= live then return wrong_size(buckets, drawable, live) end
  n = redis.call('HLEN', places)
  if n ~= pieces then return wrong_size(places, n, pieces) end
  n = weight.is_ranked() and redis.call('ZCARD', ranked) or present()
  return n ~= present() and wrong_size(ranked, n, present()) or nil
end

local function incomplete_versions()
  local live = count('sampleable_size') + count('hidden')
  local n, all = redis.call('ZCARD', versions), live + count('leased') + count('parting')
  if n ~= all then return wrong_size(versions, n, all) end
  n = redis.call('ZCOUNT', versions, 0, '+inf')
  if n ~= live then return wrong_size(versions, n, live) end
  n = redis.call('HLEN', authors)
  return n ~= count('unseen') and wrong_size(authors, n, count('unseen')) or nil
end

-- Side keys whose loss nothing makes good, by what the counters say of them. The others hold calls that are under way, and
-- come again with those. One to four looks, whatever the size.
local function incomplete()
  local there = count('sampleable_size') + count('hidden')
  if has_order() then
    local n = redis.call('ZCARD', order)
    if n ~= there then return wrong_size(order, n, there) end
  else
    local first, gaps = count('first'), place(count('last')) - place(count('first')) + 1 - there
    local n = gaps ~= 0 and redis.call('ZCOUNT', holes, int(first), '+inf') or 0
    if n ~= gaps then return wrong_size(holes, n, gaps) end
  end
  local wrong = weight.is_used() and incomplete_priorities() or age.is_kept() and incomplete_versions()
  if wrong then return wrong end
  local n = redis.call('SCARD', parting)
  if n ~= count('parting') then return wrong_size(parting, n, count('parting')) end
  if count('leased') > 0 and redis.call('EXISTS', leases, leased) < 2 then
    return missing(redis.call('EXISTS', leases) == 0 and leases or leased, 'what is lent')
  end
  if redis.call('EXISTS', held, holds) == 1 and redis.call('EXISTS', kept) == 0 then
    return redis.call('EXISTS', held) == 0 and missing(held, 'what ' .. holds .. ' holds')
      or missing(holds, 'who holds ' .. held)
  end
  return nil
end
