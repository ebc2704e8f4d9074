-- write: what both ways of writing share: the guards before, and the counts after.
-- @include request
local MAX_INDEX = 9007199254740991 -- 2^53 - 1: an index is exact in doubles, everywhere
local MAX_COUNT = '9223372036854775807' -- 2^63 - 1: what HINCRBY can hold
local MAX_FOREIGN = 1000

-- Whether n more fit below 2^63; in two halves, since a double cannot hold the text's value.
local function fits(text, n)
  local high, low = tonumber(text:sub(1, -10)) or 0, tonumber(text:sub(-9)) + n
  high, low = high + math.floor(low / 1e9), low % 1e9
  return high < 9223372036 or (high == 9223372036 and low <= 854775807)
end

-- An entry that somebody added by hand took an index: it is deleted and counted, and its index stays unused.
local function skip_foreign()
  local last = count('last')
  local newest = redis.call('XREVRANGE', records, '+', '(0-' .. int(last), 'COUNT', 1)[1]
  if not newest then return nil end
  local index = tonumber(newest[1]:match('^0%-(%d+)$'))
  if not index or index - last > MAX_FOREIGN then
    return {'DAMAGED', records, 'holds_entry_' .. newest[1], 'no_id_above_0-' .. int(last)}
  end
  local gap = {}
  for x = last + 1, index do gap[#gap + 1] = int(x) end
  bump('foreign', delete_entries(gap))
  set_count('last', index)
  if settings.consume then return nil end
  bump('sampleable_size', #gap)
  unlive(gap)
  return nil
end

-- Why n records may not be written, or nil.
local function refusal(n, schema_hash, schema)
  if settings.state ~= 'open' then return {'SHUT'} end
  local damage = skip_foreign()
  if damage then return damage end
  if count('last') + n > MAX_INDEX then return {'LIMIT', 'index', int(count('last')), int(n), int(MAX_INDEX)} end
  for _, name in ipairs({'write_count', 'records_total'}) do
    local value = redis.call('HGET', counters, name) or '0'
    if not fits(value, n) then return {'LIMIT', name, value, int(n), MAX_COUNT} end
  end
  if not settings.schema_hash then return schema == '' and {'NO_SCHEMA'} or nil end
  return settings.schema_hash ~= schema_hash and {'SCHEMA'} or nil
end

-- Counts the n newest entries of `records`, makes room for them, and fixes the schema if this was the first write.
local function written(n, schema_hash, schema, record_bytes)
  if not settings.schema_hash then
    redis.call('HSET', config, 'schema_hash', schema_hash, 'schema', schema, 'record_bytes', record_bytes)
  end
  if settings.consume then
    local members = {}
    for index = count('last') + 1, count('last') + n do
      members[#members + 1] = int(index)
      members[#members + 1] = members[#members]
    end
    call_many('ZADD', order, members)
  end
  for _, name in ipairs({'last', 'sampleable_size', 'storage_size', 'write_count', 'records_total'}) do bump(name, n) end
  make_room()
end
