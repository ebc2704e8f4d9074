-- double: numbers as 8 bytes, IEEE 754, lowest byte first. Servers have `struct` for that; fakeredis has not.
local double = {}
local struct = struct -- luacheck: ignore 113
local FORMS = {} -- n -> what `struct` is told
local to_bytes, to_numbers = struct and struct.pack, struct and struct.unpack

function double.pack(x)
  return to_bytes('<d', x)
end

function double.at(text, at)
  return (to_numbers('<d', text, at))
end

-- The n numbers of a text from byte `at` (1 is the first) on; `struct` gives one more, the place behind them.
function double.many(text, at, n)
  local form = FORMS[n]
  if not form then
    form = '<' .. string.rep('d', n)
    FORMS[n] = form
  end
  return to_numbers(form, text, at)
end

-- Whole numbers below 2^53 and a sign at most; no NaN, no infinity.
local function by_hand(x)
  if x == 0 then return string.rep('\0', 8) end
  local part, e = math.frexp(math.abs(x))
  local biased = math.max(0, e + 1022)
  local bits = biased > 0 and (part * 2 - 1) * 2 ^ 52 or math.ldexp(part, e + 1074)
  local low = bits % 2 ^ 32
  local high = (bits - low) / 2 ^ 32 + biased * 2 ^ 20 + (x < 0 and 2 ^ 31 or 0)
  local bytes = {}
  for i = 0, 3 do
    bytes[i + 1] = math.floor(low / 256 ^ i) % 256
    bytes[i + 5] = math.floor(high / 256 ^ i) % 256
  end
  return string.char(unpack(bytes))
end

local function number_at(text, at)
  local a, b, c, d, e, f, g, h = text:byte(at, at + 7)
  local bits = ((((f * 256 + e) * 256 + d) * 256 + c) * 256 + b) * 256 + a + g % 16 * 2 ^ 48
  local biased = h % 128 * 16 + math.floor(g / 16)
  local x = biased > 0 and math.ldexp(1 + bits / 2 ^ 52, biased - 1023) or math.ldexp(bits, -1074)
  if biased == 2047 then x = bits == 0 and math.huge or 0 / 0 end
  return h > 127 and -x or x
end

if not struct then
  double.pack, double.at = by_hand, number_at
  function double.many(text, at, n)
    local out = {}
    for i = 1, n do out[i] = number_at(text, at + (i - 1) * 8) end
    return unpack(out)
  end
end
