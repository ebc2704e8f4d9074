-- remove: takes live records out by index; others are passed over. Those that nobody has are counted as ignored.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5..]  index       int    1 to 20,000 of them
-- Returns  each after the word what became of open_number: applied, never or -
--   OK removed                        how many were live
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   records, order, holes, versions, authors, uses, parting, counters
-- Publishes  wake, standby to waiters
-- @include request
local again, became, time = accept(false, false)
if again then return again end
local found, seen, ignored = {}, {}, 0
for i = 5, #ARGV do
  if not seen[ARGV[i]] and is_present(ARGV[i]) then found[#found + 1] = ARGV[i] end
  if not seen[ARGV[i]] and is_skipped(tonumber(ARGV[i])) then ignored = ignored + 1 end
  seen[ARGV[i]] = true
end
if #found > 0 then
  unlive(found)
  bump('removed', #found)
  limit.left(#found)
  drop(found)
end
bump('ignored', ignored)
return reply('remove', became, {'OK', int(#found)}, time)
