-- alpha: another exponent of priorities, from the first step on; each step re-weighs some of what is stored, until all is.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  lane          text   the caller's lane
-- ARGV[3]  number        int    of this request on the lane
-- ARGV[4]  open_number   int    lowest number of the lane whose reply never came, or 0
-- ARGV[5]  alpha         text   a number >= 0, as Python writes it; taken over by the first step alone
-- ARGV[6]  cursor        text   0 to begin, then what the last step gave
-- ARGV[7]  process       text   likewise: a cursor means nothing to another process of the server
-- Returns  each after the word what became of open_number: applied, never or -
--   OK                                all is weighed by the alpha that is in force
--   MORE cursor process               not yet; ask again with these
--   DAMAGED key found expected        a key is missing
--   GONE | FORGOTTEN | STALE          another epoch | lane not known | a late copy
-- Writes   config, priorities, places, buckets, counters
-- Publishes  wake, standby to waiters
-- @include request
-- Blocks: a twentieth of a second where each goes to another bin. A server that packs its hashes (hash-max-listpack-entries and
-- -value above 168, which is not its default) gives as many as it packs at once.
local AT_ONCE = 500
local again, became, time = accept(false, false)
if again then return again end

-- In the texts of the sampler and the remover, which have the same where both have it.
local function take_over(exponent)
  for _, which in ipairs({'sampler', 'remover'}) do
    settings[which] = settings[which]:gsub('alpha=[^,)]+', 'alpha=' .. exponent)
    redis.call('HSET', config, which, settings[which])
  end
  weight.unsound() -- which takes it in
end

-- Who cannot be drawn now has its weight when it can.
local function weigh(b)
  for spot = 0, block.SIZE - 1 do
    local w, p = block.at(b, spot)
    local new = w > 0 and weight.of(p) or 0
    if new ~= w then block.put(b, spot, new, p, w, p) end
  end
end

local process = redis.call('HGET', config, 'server') or '-'
local cursor = process == ARGV[7] and ARGV[6] or '0'
if ARGV[6] == '0' then take_over(ARGV[5]) end
if not weight.in_bins() then return reply('alpha', became, {'OK'}, time) end
local page, numbers = redis.call('HSCAN', priorities, cursor, 'COUNT', AT_ONCE), {}
for i = 1, #page[2], 2 do numbers[#numbers + 1] = tonumber(page[2][i]) end
table.sort(numbers) -- so that the same contents go to the same places on every server
block.load(numbers)
for _, id in ipairs(numbers) do
  local b = block.open(id)
  if b then weigh(b) end
end
return reply('alpha', became, page[1] == '0' and {'OK'} or {'MORE', page[1], process}, time)
