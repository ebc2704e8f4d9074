-- alive: who has written lately.
-- @include state
local WRITER_US = 60 * 1000000 -- a writer counts as alive so long after its last write

-- Microseconds since the last write (-1: there was none), and the number of live writers.
local function liveness(time)
  local idle = count('last_write') > 0 and time - count('last_write') or -1
  return int(idle), int(redis.call('ZCOUNT', writers, int(time - WRITER_US), '+inf'))
end
