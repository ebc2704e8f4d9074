-- delete: no key of the buffer is left; every wait on it ends.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- Returns  each after a -
--   OK                                gone
--   GONE                              another epoch
-- Writes   every key
-- Publishes  wake to every waiter; deleted to events
-- @include erase
local there = redis.call('HGET', config, 'epoch')
if there and there ~= ARGV[1] then return {'GONE', '-'} end -- without a config, what is left is rest: it goes, too
redis.call('DEL', none)
erase()
return {'OK', '-'}
