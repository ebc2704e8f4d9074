-- wait: says whether a draw would find enough now; or joins the line until it would. It takes nothing.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  min_items     int    records that must be there
-- ARGV[6]  take          int    what the call asks for another: records that its draw will take away, or 0
-- ARGV[7]  wait          0|1    join the line if they are not there
-- ARGV[8]  keep_place    0|1    a later poll of a wait that stands in the line
-- ARGV[9]  poll_us       int    the waiter's longest time between polls, in microseconds
-- ARGV[10] shutdowns     int    number of shutdowns when the wait began, or -1
-- ARGV[11] channel       text   where the waiter listens
-- Returns  each after the word what became of open_number: applied, never or -
--   READY have need                   enough is there
--   NOT_READY have need shutdowns again_us idle_us writers leased    again_us: when a turn ahead or a lease ends, or 0;
--                                     idle_us: since the last write, or -1; writers that are alive; records that are lent
--   SHUT                              the buffer is shut, or was since the wait began
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   counters, waiters, waiting
-- Publishes  wake, standby to waiters
-- @include request
local min_items, take, wait, keep_place = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8] == '1'
local poll_us, shutdowns, channel = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11]

local again, became, time = accept(false, keep_place)
if again then return again end
if is_shut(shutdowns) then
  leave_line(lane)
  return reply('wait', became, {'SHUT'}, time)
end
local line = settings.consume and read_line(time) or {}
local have = available(line, lane, take)
if have >= needed(min_items) then
  leave_line(lane)
  return reply('wait', became, {'READY', int(have), int(min_items)}, time)
end
local wish = {need = min_items, take = take, wait = wait, poll_us = poll_us, channel = channel}
return reply('wait', became, not_ready(line, lane, have, wish, time), time)
