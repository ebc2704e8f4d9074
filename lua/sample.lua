-- sample: checks, chooses, consumes and counts in one step; or joins the line and says what is missing.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  batch_size    int    records to draw
-- ARGV[6]  min_items     int    records that must be there
-- ARGV[7]  wait          0|1    join the line if they are not
-- ARGV[8]  keep_place    0|1    a later poll of a wait that stands in the line
-- ARGV[9]  poll_us       int    the waiter's longest time between polls, in microseconds
-- ARGV[10] shutdowns     int    number of shutdowns when the wait began, or -1
-- ARGV[11] channel       text   where the waiter listens
-- ARGV[12] lease_us      int    how long the batch is lent, in microseconds; 0: it is consumed at once
-- ARGV[13] with_bytes    0|1    1: the payloads, too, where they are small; 0: the caller may have them already
-- ARGV[14] foreseen      text   first and live, as below, if the caller has sent the commands that read the records by itself
-- ARGV[15..20] seed      int    six seeds of 32 bits
-- Returns  each after the word what became of open_number: applied, never or -
--   OK n live schema_hash flags lease indices uses priorities whole versions first payload…   n indices, hand-outs, priorities
--                                     (8 bytes each; empty: there are none), versions, the others texts with spaces; whole:
--                                     see weighted.lua; first: the least live index, where draws can be foreseen, else 0;
--                                     flags: p payloads follow (else the bytes of the largest record so far), f it was
--                                     foreseen, and no indices are told, l the last of a draining buffer, - not; lease: its
--                                     name, - none
--   NOT_READY have need shutdowns again_us idle_us writers leased hidden live limiter    see wait.lua
--   TOO_LARGE n record_bytes limit    the batch would be above the limit, in bytes
--   SHUT                              the buffer is shut, or was since the wait began
--   LAPSED                            the batch of this number was not fetched in time; its records stay consumed
--   DAMAGED key found expected        a live record has no entry
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   order, priorities, versions, authors, uses, parting, held, holds, leases, leased, counters, waiters, waiting
-- Publishes  wake, standby to waiters
-- @include use
-- @include draw
-- @include answer
local min_items, wait, keep_place = tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8] == '1'
local poll_us, shutdowns, channel, lease_us = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11], tonumber(ARGV[12])
local MAX_BATCH = 67108864 -- 64 MiB
local TURN_US = 500000
seed_from(ARGV, 15)

local again, became, time = accept(false, keep_place)
if again then return again[1] == 'OK' and repeated(again) or again end
local function done(words)
  leave_line(lane)
  return reply('sample', became, words, time)
end
if is_shut(shutdowns, 'r') then return done({'SHUT'}) end
local wish = {side = 'r', need = min_items, take = is_taken() and batch_size or 0, wait = wait, poll_us = poll_us,
  turn_us = TURN_US, channel = channel}
local line = is_taken() and read_line(time) or {}
local owed = owed_ahead(line, lane, 'r', wish.take)
local have = there_is('r', owed)
if have < needed(min_items) then return reply('sample', became, not_ready(line, lane, have, wish, time), time) end

local n = math.min(batch_size, is_distinct() and have or limit.repeats(owed))
-- Records of one size are known to be too much; others are fetched in bursts, whatever they come to.
local bytes = tonumber(settings.record_bytes)
if settings.bytes_total / settings.records_total >= bytes and n * bytes > MAX_BATCH then
  return done({'TOO_LARGE', int(n), settings.record_bytes, int(MAX_BATCH)})
end
look_ahead(n)
local indices, broken, payloads, lost
if foreseen then indices = {} else indices, broken = draw(n) end
if not indices then return done({'DAMAGED', broken, 'has_an_empty_place', 'a_record_in_each'}) end
if is_small() and not foreseen then payloads, lost = fetch(indices) end
if lost then return done({'DAMAGED', records, 'has_no_entry_0-' .. lost, 'one_for_each_live_record'}) end
local odd = {weighted.odds(indices)}

local live = int(count('sampleable_size'))
local lease = lease_us > 0 and lane .. '.' .. int(number) or nil
local words, counts = hand_out(indices, n, is_small() or foreseen, lease, lease_us, time)

-- Whether a draining buffer has no more than what is given out here: nothing of it comes back when it is acknowledged.
local function is_last()
  for _, use in ipairs(lease and counts or {}) do
    if tonumber(use) < settings.consume then return false end
  end
  return settings.state == 'draining' and count('sampleable_size') + count('leased') == (lease and n or 0)
end
local last = is_last() and 'l' or '-'
-- The whole as it was before the draw: what was taken is no part of it any more when the same number comes again.
local of_all = live .. (odd[2] ~= '' and ',' .. odd[2]:gsub(' ', ',') or '')
local told = {'OK', int(n), of_all, last .. int(count('era')), lease or '-'}
for _, word in ipairs(words) do told[#told + 1] = word end
done(told)
return answer(became, n, indices, live, last, lease or '-', counts, odd, payloads)
