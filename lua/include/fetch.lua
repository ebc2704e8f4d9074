-- fetch: the bytes of records. Neighbours come by one XRANGE.
-- @include state

-- The payloads in the order of `indices`; or nil and the first index that has no entry.
local function fetch(indices)
  local out, low = {}, 1
  while low <= #indices do
    local high = low
    while indices[high + 1] and indices[high + 1] - indices[high] == 1 do high = high + 1 end
    for i, entry in ipairs(redis.call('XRANGE', records, '0-' .. indices[low], '0-' .. indices[high])) do
      if entry[1] ~= '0-' .. indices[low + i - 1] then return nil, indices[low + i - 1] end
      out[#out + 1] = entry[2][2]
    end
    if #out < high then return nil, indices[#out + 1] end
    low = high + 1
  end
  return out
end
