-- lag: how far what is there is behind the buffer's version.
-- @include state
local EXACT = 16 -- lags below it have a place each; above, powers of two

-- "<lag>:<records>…": lag is the least of its place. What is ahead of the buffer's version counts as 0.
local function lags()
  local out, left, low = {}, age.is_kept() and present() or 0, 0
  local version = count('version')
  while left > 0 and low <= version do
    local high = low < EXACT and low or 2 * low - 1
    local from = math.max(0, version - high)
    local n = redis.call('ZCOUNT', versions, int(from), low == 0 and '+inf' or int(version - low))
    if n > 0 then out[#out + 1] = int(low) .. ':' .. int(n) end
    left, low = left - n, high + 1
  end
  return table.concat(out, ' ')
end
