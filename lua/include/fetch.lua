-- fetch: the bytes of records.
-- @include state

-- Whether indices look like one piece of the stream, in its order, as an end of a queue is.
local function is_run(indices)
  local n = #indices
  return n > 1 and indices[n] - indices[1] == n - 1 and indices[2] - indices[1] == 1
end

-- By one XRANGE; nil if they are no run after all.
local function fetch_run(indices)
  local out, found = {}, redis.call('XRANGE', records, '0-' .. indices[1], '0-' .. indices[#indices])
  for i, entry in ipairs(found) do
    if entry[1] ~= '0-' .. (indices[i] or '') then return nil end
    out[i] = entry[2][2]
  end
  return #found == #indices and out or nil
end

-- The payloads in the order of `indices`; or nil and the first index that has no entry.
local function fetch(indices)
  local run = is_run(indices) and fetch_run(indices)
  if run then return run end
  local out, call = {}, redis.call
  for i, index in ipairs(indices) do
    local id = '0-' .. index
    local entry = call('XRANGE', records, id, id)[1]
    if not entry then return nil, index end
    out[i] = entry[2][2]
  end
  return out
end
