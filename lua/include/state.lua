-- state: the buffer's settings and counters, read once at the start of a script; what changes is written by `commit`.
-- @include keys
-- @include chunks
local settings, loaded, deltas = {}, {}, {}
local SETTINGS = {'epoch', 'state', 'capacity', 'sampler', 'consume_after_n_samples', 'shutdowns', 'drained',
  'schema_hash', 'record_bytes'}
local COUNTERS = {'first', 'last', 'sampleable_size', 'storage_size', 'leased', 'parting', 'clock', 'clock_offset',
  'write_count', 'records_total', 'bytes_total'}
local NUMBERS = {'capacity', 'shutdowns', 'record_bytes'}
local MOST, STEP = 9007199254740992, 20000 -- 2^53; records of one write, which may be there before room was made for them
local TOTALS = 8 -- COUNTERS behind this one may pass 2^53: their text is kept in `settings`, and never their value

-- The value that a counter has now; only those of COUNTERS that stay below 2^53.
local function count(name)
  return loaded[name] + (deltas[name] or 0)
end

local function bump(name, n)
  deltas[name] = (deltas[name] or 0) + n
end

local function set_count(name, value)
  bump(name, value - count(name))
end

-- What stays below 2^53 is written as it is; totals by HINCRBY, which is exact to 2^63 where Lua's arithmetic is not.
local function commit()
  local set = {}
  for name, n in pairs(deltas) do
    if loaded[name] and n ~= 0 then
      loaded[name] = loaded[name] + n
      set[#set + 1], set[#set + 2] = name, int(loaded[name])
    elseif n ~= 0 then
      redis.call('HINCRBY', counters, name, int(n))
    end
  end
  if #set > 0 then redis.call('HSET', counters, unpack(set)) end
  deltas = {}
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

-- The n indices behind the last one are stored, live, and written.
local function append(n)
  if settings.consume then
    local members = {}
    for i = 1, n do
      members[2 * i] = int(count('last') + i)
      members[2 * i - 1] = members[2 * i]
    end
    call_many('ZADD', order, members)
  end
  for _, name in ipairs({'last', 'sampleable_size', 'storage_size', 'write_count', 'records_total'}) do bump(name, n) end
end

-- A gate whose closing script was lost leaves the stream under `inbox`, with records that are not counted yet. The next
-- write makes room for them.
local function mend()
  redis.call('RENAME', inbox, records)
  append(#redis.call('XRANGE', records, '(0-' .. int(count('last')), '+'))
  commit()
end

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
  if not settings.consume and settings.consume_after_n_samples ~= 'None' then
    return {'DAMAGED', '-', config, 'has no number as consume_after_n_samples', 'a whole one, or None'}
  end
  if count('first') > count('last') + 1 or count('sampleable_size') + count('leased') > settings.capacity + STEP then
    return {'DAMAGED', '-', counters, 'has impossible sizes', 'what fits the stream'}
  end
  return nil
end

-- Reads settings and counters. Another epoch means that the buffer was deleted (and created anew) since the caller opened it.
local function enter(epoch, inside_gate)
  local values = redis.call('HMGET', config, unpack(SETTINGS))
  for i, name in ipairs(SETTINGS) do settings[name] = values[i] end
  if settings.epoch ~= epoch then return {'GONE', '-'} end
  settings.capacity = tonumber(settings.capacity)
  settings.consume = tonumber(settings.consume_after_n_samples)
  values = redis.call('HMGET', counters, unpack(COUNTERS))
  if not values[1] then return {'DAMAGED', '-', counters, 'is missing', 'the hash of counters'} end
  for i, value in ipairs(values) do
    if i <= TOTALS then loaded[COUNTERS[i]] = tonumber(value or 0) else settings[COUNTERS[i]] = value or '0' end
  end
  local damaged = unsound()
  if damaged then return damaged end
  if inside_gate or redis.call('EXISTS', records) == 1 then return nil end
  if redis.call('EXISTS', inbox) == 0 then return {'DAMAGED', '-', records, 'is missing', 'the stream of records'} end
  mend()
  return nil
end
