-- settle: an empty request: registers the lane, settles its open number, ends its wait and its hold; or forgets the lane.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  forget        0|1    the lane will not be used again, and no copy of a request of it is under way
-- Returns  each after the word what became of open_number: applied, never or -
--   OK                                done
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   lanes, requests, waiters, waiting, what an undone draw had taken
-- Publishes  wake, standby to waiters
-- @include request
local refused = enter(epoch)
if refused then return refused end
redis.call('DEL', none)
if not stored(lane) then
  if ARGV[5] == '1' then return {'OK', '-'} end
  redis.call('HSET', requests, lane, '0 settle OK')
end
local again, became, time = accept(false, false)
if again then return again end
expire_lanes(time)
local answer = reply('settle', became, {'OK'}, time)
if ARGV[5] == '1' then
  forget_lane(lane)
  commit()
end
return answer
