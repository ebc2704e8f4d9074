-- wait: says whether a draw, or a write, would find enough now; or joins the line until it would. It takes nothing.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  side          text   r: of a draw; w: of a write
-- ARGV[6]  min_items     int    records that must be there; or for which there must be room
-- ARGV[7]  take          int    records that the caller will take or write next, or 0
-- ARGV[8]  wait          0|1    join the line if they are not there
-- ARGV[9]  keep_place    0|1    a later poll of a wait that stands in the line
-- ARGV[10] poll_us       int    the waiter's longest time between polls, in microseconds
-- ARGV[11] shutdowns     int    number of shutdowns when the wait began, or -1
-- ARGV[12] channel       text   where the waiter listens
-- ARGV[13] turn_us       int    how long its turn lasts once it is ready, in microseconds
-- Returns  each after the word what became of open_number: applied, never or -
--   READY have need                   enough is there; a write that waited has its turn
--   NOT_READY have need shutdowns again_us idle_us writers leased hidden live limiter    again_us: when a turn ahead or a
--                                     lease ends, or 0; idle_us: since the last write, or -1; writers that are alive; records
--                                     that are lent, hidden, live; what limits the rate, see limit.lua, or -
--   SHUT                              the buffer is shut (for writes: or draining), or was shut since the wait began
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   counters, writers, waiters, waiting
-- Publishes  wake, standby to waiters
-- @include request
local wish = {side = ARGV[5], need = tonumber(ARGV[6]), wait = ARGV[8] == '1', poll_us = tonumber(ARGV[10]),
  turn_us = tonumber(ARGV[13]), channel = ARGV[12]}

local again, became, time = accept(false, ARGV[9] == '1')
if again then return again end
if is_shut(tonumber(ARGV[11]), wish.side) then
  leave_line(lane)
  return reply('wait', became, {'SHUT'}, time)
end
if wish.side == 'w' and wish.wait then redis.call('ZADD', writers, int(time), lane) end -- it would write, if it could
wish.take = (wish.side == 'w' or is_taken()) and tonumber(ARGV[7]) or 0
local line = is_taken() and read_line(time) or {}
local owed = owed_ahead(line, lane, wish.side, wish.take)
local have = there_is(wish.side, owed)
if not finds_enough(wish, owed) then return reply('wait', became, not_ready(line, lane, have, wish, time), time) end
-- A write comes next, with its bytes: until then nobody else is given the room.
if wish.wait and wish.side == 'w' and wish.take > 0 then
  join_line(lane, {side = 'w', need = wish.need, take = wish.take, since = time, ends = time + 3 * wish.poll_us + wish.turn_us,
    turn = time + wish.turn_us, standby = 0, lost = 0, turn_us = wish.turn_us, channel = wish.channel})
else
  leave_line(lane)
end
return reply('wait', became, {'READY', int(math.min(have, 9007199254740991)), int(wish.need)}, time)
