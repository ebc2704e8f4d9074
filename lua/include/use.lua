-- use: handing out records, counted where the buffer consumes.
-- @include request

-- Counts a use of each, takes those out of the live set whose last use it was. Gives the words for the stored answer
-- (index:use, with a `c` where this use consumed it), the uses, and the consumed ones.
local function consume(indices)
  local counts, gone, words = {}, {}, {}
  if settings.consume > 1 then
    local set = {}
    for i, had in ipairs(ask_many('HMGET', uses, indices)) do
      counts[i] = int((had or 0) + 1)
      set[2 * i - 1], set[2 * i] = indices[i], counts[i]
    end
    call_many('HSET', uses, set)
  end
  for i, index in ipairs(indices) do
    local last_use = settings.consume == 1 or tonumber(counts[i]) == settings.consume
    if last_use then gone[#gone + 1] = index end
    counts[i] = counts[i] or '1'
    words[i] = index .. ':' .. counts[i] .. (last_use and 'c' or '')
  end
  unlive(gone)
  bump('consumed', #gone)
  return words, counts, gone
end

-- A batch that is to be fetched, or asked for again, is held. One that takes nothing and comes with its bytes needs no hold.
local function hand_out(indices, with_bytes, time)
  local words, counts, gone = {}, {}, {}
  if settings.consume then words, counts, gone = consume(indices) elseif not with_bytes then words = indices end
  if #words > 0 then hold(lane, indices, time) end
  drop(gone)
  bump('sample_calls', 1)
  bump('samples_returned', #indices)
  return words, counts
end
