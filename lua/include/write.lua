-- write: what both ways of writing share: the guards before, and the counts after.
-- @include request
local MAX_INDEX = 9007199254740991 -- 2^53 - 1: an index is exact in doubles, everywhere
local MAX_FOREIGN = 1000

-- Whether n more fit below 2^63; in two halves, since a double cannot hold the text's value.
local function fits(text, n)
  local high, low = tonumber(text:sub(1, -10)) or 0, tonumber(text:sub(-9)) + n
  high, low = high + math.floor(low / 1e9), low % 1e9
  return high < 9223372036 or (high == 9223372036 and low <= 854775807)
end

-- Indices that somebody else used, up to `index`, stay unused for ever.
local function leave_gap(index)
  local gap = {}
  for x = count('last') + 1, index do gap[#gap + 1] = int(x) end
  if #gap == 0 then return gap end
  set_count('last', index)
  if not has_order() then take_out(gap) end
  return gap
end

-- The index of an id that can follow the last one: not too far away, and with room for n.
local function follows(id, n)
  local index = tonumber(id:match('^0%-(%d+)$'))
  return index and index - count('last') <= MAX_FOREIGN and index + n - 1 <= MAX_INDEX and index or nil
end

local function damage(id)
  return {'DAMAGED', records, 'holds_entry_' .. id, 'no_id_above_0-' .. int(count('last'))}
end

-- Entries that somebody added by hand are deleted and counted.
local function skip_foreign()
  local newest = redis.call('XREVRANGE', records, '+', '(0-' .. int(count('last')), 'COUNT', 1)[1]
  if not newest then return nil end
  local index = follows(newest[1], 1)
  if not index then return damage(newest[1]) end
  bump('foreign', delete_entries(leave_gap(index)))
  return nil
end

-- Why n records may not be written, or nil. Who waited, and has its turn, comes before those behind it.
local function refusal(n, schema_hash, schema, bytes, time)
  if settings.state ~= 'open' then return {'SHUT'} end
  if count('leased') >= settings.capacity then return {'FULL', int(settings.capacity)} end
  local why = skip_foreign()
  if why then return why end
  if count('last') + n > MAX_INDEX then return {'LIMIT', 'index', int(count('last')), int(n), int(MAX_INDEX)} end
  for name, more in pairs({write_count = n, records_total = n, bytes_total = bytes}) do
    if not fits(settings[name], more) then return {'LIMIT', name, settings[name], int(more), MAX_COUNT} end
  end
  if not settings.schema_hash and schema == '' then return {'NO_SCHEMA'} end
  if settings.schema_hash and settings.schema_hash ~= schema_hash then return {'SCHEMA'} end
  local owed = limit.is_spent() and owed_ahead(read_line(time), lane, 'w', n) or 0
  if there_is('w', owed) < n then return lacks(there_is('w', owed), n, 0, time) end
  return nil
end

-- A write that is refused for good leaves its place.
local function give_up(why)
  if why[1] ~= 'NOT_READY' and why[1] ~= 'NO_SCHEMA' then leave_line(lane) end
  return why
end

-- The first write fixes the schema. `record_bytes` is the largest record so far: it decides how batches travel.
local function describe(schema_hash, schema, record_bytes)
  if not settings.schema_hash then redis.call('HSET', config, 'schema_hash', schema_hash, 'schema', schema) end
  if record_bytes > tonumber(settings.record_bytes) then redis.call('HSET', config, 'record_bytes', int(record_bytes)) end
end

-- Makes room for the n newest entries of `records`, counts them, and drops those that are too old already. Who writes is a
-- writer. `given`: their priorities as text; `seed`: six seeds for a random remover, or empty; `origin`: see age.lua.
local function written(n, bytes, time, given, seed, origin)
  local each = priority.spread(given, n)
  make_room(n - stale.arriving(origin, n), seed)
  append(n, each, origin)
  stale.drop(stale.overdue(count('version'), n))
  keep_tail()
  leave_line(lane)
  set_count('last_write', time)
  redis.call('ZADD', writers, int(time), lane)
  bump('bytes_total', bytes)
end
