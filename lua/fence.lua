-- fence: while a buffer is repaired nobody else's scripts run on it: they are told to come again.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  id            text   of the repair, hexadecimal
-- ARGV[3]  hold_us       int    how long it stands, in microseconds; 0: it is taken away
-- ARGV[4]  renew         0|1    1: it must stand still
-- Returns  each after a -
--   OK last_id config counters shares leased   the stream's last id, or empty; four hashes as they are; empty where one is none
--   RUNNING us                        another repair is, for so long yet
--   CLOSED                            it does not stand any more
--   GONE                              another epoch
-- Writes   config
-- @include fenced
local id, hold_us = ARGV[2], tonumber(ARGV[3])
if redis.call('TYPE', config).ok ~= 'hash' or redis.call('HGET', config, 'epoch') ~= ARGV[1] then return {'GONE', '-'} end
local left, whose = fenced_for(redis.call('HGET', config, 'fenced'))
if left > 0 and whose ~= id then return {'RUNNING', '-', int(left)} end
if ARGV[4] == '1' and left == 0 then return {'CLOSED', '-'} end
if hold_us > 0 then redis.call('HSET', config, 'fenced', id .. ' ' .. int(server_time() + hold_us))
else redis.call('HDEL', config, 'fenced') end

local function hash(key)
  return redis.call('TYPE', key).ok == 'hash' and redis.call('HGETALL', key) or {}
end

if redis.call('EXISTS', records) == 0 then records = inbox end -- inside a gate
local stream, last_id = redis.call('TYPE', records).ok == 'stream' and redis.call('XINFO', 'STREAM', records) or {}, ''
for i = 1, #stream, 2 do
  if stream[i] == 'last-generated-id' then last_id = stream[i + 1] end
end
return {'OK', '-', last_id, hash(config), hash(counters), hash(shares), hash(leased)}
