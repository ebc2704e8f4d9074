-- state: the buffer's settings and counters, read once at the start of a script; what changes is written by `commit`.
-- @include sound
-- @include sizes
-- @include limit
-- @include fenced

-- A total stays at its last value: a script that is refused here has done half its work. (A write looks beforehand.)
local function add_to(name, n)
  local told = redis.pcall('HINCRBY', counters, name, int(n))
  if type(told) == 'table' and told.err then redis.call('HSET', counters, name, MAX_COUNT) end
end

-- What stays below 2^53 is written as it is; totals by HINCRBY, which is exact to 2^63 where Lua's arithmetic is not.
local function commit()
  local set = {}
  for name, n in pairs(deltas) do
    if loaded[name] and n ~= 0 then
      loaded[name] = loaded[name] + n
      set[#set + 1], set[#set + 2] = name, int(loaded[name])
    elseif n ~= 0 then
      add_to(name, n)
    end
  end
  if #set > 0 then redis.call('HSET', counters, unpack(set)) end
  deltas = {}
  priority.write()
  age.write()
end

-- Microseconds of server time that never go back and never stand still, whatever happens to the server's clock.
local function now()
  local t = redis.call('TIME')
  local time = t[1] * 1000000 + t[2] + count('clock_offset')
  local behind = count('clock') - time
  if behind >= 0 then
    bump('clock_offset', behind + 1)
    time = time + behind + 1
  end
  set_count('clock', time)
  return time
end

-- The n indices behind the last one are stored and written. `each`: their priorities, where they have any; `origin`: see
-- age.lua.
local function append(n, each, origin)
  local members, new = {}, {}
  if has_order() or weight.is_used() or age.is_kept() then
    for i = 1, n do
      new[i] = int(count('last') + i)
      members[2 * i - 1], members[2 * i] = new[i], new[i]
    end
  end
  if has_order() then call_many('ZADD', order, members) end
  if age.is_kept() then age.enter(new, origin) end
  if each then count_in(new, each) else bump('sampleable_size', n) end
  for _, name in ipairs({'last', 'storage_size', 'write_count', 'records_total'}) do bump(name, n) end
  limit.inserted(n)
end

-- A gate whose closing script was lost leaves the stream under `inbox`, with records that are not counted yet. The next
-- write makes room for them, and the next numbered request drops what is too old.
local function mend()
  redis.call('RENAME', inbox, records)
  local newest = redis.call('XREVRANGE', records, '+', '(0-' .. int(count('last')), 'COUNT', 1)[1]
  local n = newest and tonumber(newest[1]:sub(3)) - count('last') or 0
  if n > 0 then append(n, priority.spread('', n), settings.incoming or '') end
  commit()
end

-- Whether the records are there, and how often they were handed out where that was counted: one look for both.
local function has_records()
  if count('used') > 0 then return redis.call('EXISTS', records, uses) == 2 end
  return redis.call('EXISTS', records) == 1
end

local function read_settings()
  local values = redis.call('HMGET', config, unpack(SETTINGS))
  for i, name in ipairs(SETTINGS) do settings[name] = values[i] end
  settings.capacity = tonumber(settings.capacity)
  settings.consume = tonumber(settings.consume_after_n_samples)
end

-- Gives whether they are there.
local function read_counters()
  local values = redis.call('HMGET', counters, unpack(COUNTERS))
  for i, value in ipairs(values) do
    if i <= TOTALS then loaded[COUNTERS[i]] = tonumber(value or 0) else settings[COUNTERS[i]] = value or '0' end
  end
  return values[1]
end

-- Reads settings and counters. Another epoch means that the buffer was deleted (and created anew) since the caller opened it.
local function enter(epoch, inside_gate)
  read_settings()
  if settings.epoch ~= epoch then return not settings.epoch and missing_config() or {'GONE', '-'} end
  local fence = not_now(settings.fenced)
  if fence then return fence end
  if not read_counters() then return missing(counters, 'the hash of counters') end
  local damaged = unsound()
  if damaged or inside_gate then return damaged end
  if not has_records() then
    if redis.call('EXISTS', records) == 0 then
      if redis.call('EXISTS', inbox) == 0 then return missing(records, 'the stream of records') end
      mend()
    end
    if count('used') > 0 and redis.call('EXISTS', uses) == 0 then return missing(uses, 'how often each was handed out') end
  end
  return incomplete()
end
