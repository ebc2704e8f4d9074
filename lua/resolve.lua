-- resolve: what became of a write whose reply never came. Asked under the write's own number: if that was never judged, it is
--          used up now, so that a late copy of the write is not applied. Asking again gives the same answer.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of the write
-- ARGV[4]  open_number   int    as the write named it
-- Returns  each after the word what became of open_number: applied, never or -
--   OK word data…                     the answer that was given to the write; NEVER if it never came
--   DAMAGED key found expected        the stream of records is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | the lane has gone on since
-- Writes   lanes, requests, waiters, waiting, what an undone draw had taken
-- Publishes  wake, standby to waiters
-- @include request
local refused = enter(epoch)
if refused then return refused end
local last = stored(lane)
if last and last.number == number then
  local out = {'OK', '-'}
  for _, word in ipairs(last.words) do out[#out + 1] = word end
  return out
end
local again, became, time = accept(false, false)
if again then return again end
reply('resolve', became, {'NEVER'}, time)
return {'OK', became, 'NEVER'}
