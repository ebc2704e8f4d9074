-- fenced: whether a buffer is being repaired. `fenced` in `config`: "<id of the repair> <until, in microseconds of the server>".
-- @include keys
-- @include chunks

local function server_time()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- For how many microseconds yet, and whose repair it is.
local function fenced_for(text)
  local id, ends = (text or ''):match('^(%x+) (%d+)$')
  return id and math.max(0, ends - server_time()) or 0, id
end

-- What is said to all others: the same as a server says that is loading, so that clients come again by themselves.
local function not_now(text)
  if not text or fenced_for(text) == 0 then return nil end
  return redis.error_reply('LOADING the buffer is being repaired')
end
