-- process: which process of the server runs this script. Another one (after a restart, a failover) may have lost writes.
-- @include keys

-- Its name; nil where INFO is refused.
local function this_process()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and info:match('run_id:(%w+)') or nil
end
