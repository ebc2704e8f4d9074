-- erase: no key of the buffer is left. Waiters run their scripts again and find it gone.
-- @include wake

local function erase()
  if redis.call('TYPE', waiters).ok == 'zset' and redis.call('TYPE', waiting).ok == 'hash' then wake_all(0) end
  redis.call('UNLINK', unpack(KEYS))
  redis.call('PUBLISH', events, 'deleted')
end
