-- fetch: the bytes of records.
-- @include state

-- 1 or -1 where indices rise or fall without a break of more than half, as those at an end of a queue do; else nil.
local function direction(indices)
  local n = #indices
  local step = n > 1 and (tonumber(indices[n]) > tonumber(indices[1]) and 1 or -1)
  if not step or (indices[n] - indices[1]) * step >= 2 * n then return nil end
  for i = 2, n do
    if (indices[i] - indices[i - 1]) * step <= 0 then return nil end
  end
  return step
end

-- By one XRANGE over all between; nil where an entry is missing.
local function fetch_range(indices, step)
  local out, next_id = {}, '0-' .. indices[1]
  local command = step > 0 and 'XRANGE' or 'XREVRANGE'
  for _, entry in ipairs(redis.call(command, records, next_id, '0-' .. indices[#indices])) do
    if entry[1] == next_id then
      out[#out + 1] = entry[2][2]
      next_id = '0-' .. (indices[#out + 1] or '')
    end
  end
  return #out == #indices and out or nil
end

-- The payloads in the order of `indices`; or nil and the first index that has no entry.
local function fetch(indices)
  local step = direction(indices)
  local range = step and fetch_range(indices, step)
  if range then return range end
  local out, call = {}, redis.call
  for i, index in ipairs(indices) do
    local id = '0-' .. index
    local entry = call('XRANGE', records, id, id)[1]
    if not entry then return nil, index end
    out[i] = entry[2][2]
  end
  return out
end
