-- state: the buffer's settings and counters, read once at the start and changed once at the end of a script.
-- @include keys
-- @include chunks
local settings, loaded, deltas = {}, {}, {}
local SETTINGS = {'epoch', 'state', 'capacity', 'sampler', 'consume_after_n_samples', 'shutdowns', 'drained',
  'schema_hash', 'record_bytes'}
local COUNTERS = {'first', 'last', 'sampleable_size', 'storage_size', 'leased', 'parting', 'clock', 'clock_offset'}

-- The value that a counter has now; only those of COUNTERS, which stay far below 2^53.
local function count(name)
  return loaded[name] + (deltas[name] or 0)
end

local function bump(name, n)
  deltas[name] = (deltas[name] or 0) + n
end

local function set_count(name, value)
  bump(name, value - count(name))
end

-- HINCRBY is exact to 2^63; Lua's own arithmetic would not be.
local function commit()
  for name, n in pairs(deltas) do
    if n ~= 0 then redis.call('HINCRBY', counters, name, int(n)) end
    if loaded[name] then loaded[name] = loaded[name] + n end
  end
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

-- A gate whose closing script was lost leaves the stream under `inbox`, with records that are not counted yet.
local function mend()
  redis.call('RENAME', inbox, records)
  local found = redis.call('XRANGE', records, '(0-' .. int(count('last')), '+')
  local members = {}
  for _, entry in ipairs(found) do
    local index = entry[1]:sub(3)
    members[#members + 1], members[#members + 2] = index, index
  end
  if settings.consume then call_many('ZADD', order, members) end
  for _, name in ipairs({'last', 'sampleable_size', 'storage_size', 'write_count', 'records_total'}) do bump(name, #found) end
  commit()
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
  for i, value in ipairs(values) do loaded[COUNTERS[i]] = tonumber(value or 0) end
  if inside_gate or redis.call('EXISTS', records) == 1 then return nil end
  if redis.call('EXISTS', inbox) == 0 then return {'DAMAGED', '-', records, 'is missing', 'the stream of records'} end
  mend()
  return nil
end
