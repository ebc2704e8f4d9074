-- clear: no record is stored any more, and the stream goes on behind its last id.
-- @include state
local ENTRIES = 10000 -- entries; above it the stream is freed behind the server's back, a moment later

local function clear_records()
  if redis.call('XLEN', records) <= ENTRIES then
    redis.call('XTRIM', records, 'MAXLEN', 0)
    return
  end
  local last = '0-' .. int(count('last'))
  redis.call('UNLINK', records)
  redis.call('XADD', records, last, 'd', '')
  redis.call('XDEL', records, last)
end
