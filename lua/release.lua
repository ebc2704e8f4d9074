-- release: what was lent goes back, as if it had not been handed out.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5..]  lease       text   names of leases, as their draws were answered
-- Returns  each after the word what became of open_number: applied, never or -
--   OK ended late                     leases that it ended, and those that had ended before; fewer than given: ask again
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   leases, leased, order, records, parting, counters
-- Publishes  wake, standby to waiters
-- @include request
local again, became, time = accept(false, false)
if again then return again end
local ended, late = end_leases(5, give_back)
return reply('release', became, {'OK', int(ended), int(late)}, time)
