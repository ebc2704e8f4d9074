-- version: raises the buffer's version. What would be too old under it goes first; the last step raises, so that none is ever
--          there under a version for which it is too old.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  version       int    not below that of the buffer
-- Returns  each after the word what became of open_number: applied, never or -
--   OK dropped                        it is raised; and how many records went
--   MORE dropped                      not yet: there are more of them than one script takes; ask again
--   LOWER version given               the buffer has a higher one
--   DAMAGED key found expected        a key is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   records, order, holes, priorities, versions, authors, shares, uses, parting, counters
-- Publishes  wake, standby to waiters
-- @include request
local AT_ONCE = 5000 -- records: with priorities a tenth of a second; more holes than that go with a step
local again, became, time = accept(false, false)
if again then return again end
local version = tonumber(ARGV[5])
if version < count('version') then
  return reply('version', became, {'LOWER', int(count('version')), ARGV[5]}, time)
end
local old = stale.overdue(version, AT_ONCE)
stale.drop(old)
if #stale.overdue(version, 1) > 0 then return reply('version', became, {'MORE', int(#old)}, time) end
set_count('version', version)
return reply('version', became, {'OK', int(#old)}, time)
