-- seat: the blocks of each bin in a row, so that one can be drawn.
-- @include double
-- @include chunks
-- `places`  "<bin> <c>" -> the numbers of the blocks at places 256 c and up, 8 bytes each
local seat = {CHUNK = 256}
local rows, new_rows = {}, {} -- k -> c -> its text, '' if it is not there; k -> c -> true: those that `seat.write` writes

local function row_of(k, nth)
  local at = nth % seat.CHUNK
  rows[k] = rows[k] or {}
  return rows[k], (nth - at) / seat.CHUNK, at * 8
end

-- The numbers of the blocks at many places; nil where nobody is at one of them. Two lists.
function seat.many(ks, nths)
  local names, into, of, cs, out = {}, {}, {}, {}, {}
  for i = 1, #ks do
    local row, c = row_of(ks[i], nths[i])
    of[i], cs[i] = row, c
    if not row[c] then
      row[c], names[#names + 1] = '', string.format('%d %d', ks[i], c)
      into[#names] = i
    end
  end
  for i, text in ipairs(ask_many('HMGET', places, names)) do of[into[i]][cs[into[i]]] = text or '' end
  for i = 1, #ks do
    local text, at = of[i][cs[i]], nths[i] % seat.CHUNK * 8
    if #text < at + 8 then return nil end
    out[i] = double.at(text, at + 1)
  end
  return out
end

-- The number of the block at a place, or nil.
function seat.get(k, nth)
  return (seat.many({k}, {nth}) or {})[1]
end

-- nil: from here on nobody.
function seat.set(k, nth, number)
  seat.many({k}, {nth})
  local row, c, at = row_of(k, nth)
  row[c] = row[c]:sub(1, at) .. (number and double.pack(number) .. row[c]:sub(at + 9) or '')
  new_rows[k] = new_rows[k] or {}
  new_rows[k][c] = true
end

function seat.write()
  local set, gone = {}, {}
  for k, rewritten in pairs(new_rows) do
    for c in pairs(rewritten) do
      local name, text = string.format('%d %d', k, c), rows[k][c]
      if text == '' then gone[#gone + 1] = name else set[#set + 1], set[#set + 2] = name, text end
    end
  end
  call_many('HSET', places, set)
  call_many('HDEL', places, gone)
  new_rows = {}
end
