-- opened: blocks that are taken apart, changed, and closed again by `bin.settle`.
-- @include block
local HEAD, HALF = block.HEAD, block.HALF -- bytes
local opened, touched = {}, {} -- number -> block; those that `bin.settle` has to look at, in this order

-- `counted`: the sum and the records as the bins know them.
local function made(number, text, sum, live, stored, k, nth)
  return {number = number, text = text, sum = sum, live = live, stored = stored, k = k, nth = nth, counted = sum,
          counted_live = live, is_touched = false}
end

-- The block of a number that is known, to be changed; false where there is none that makes sense.
function block.open(number)
  local b = opened[number]
  if b ~= nil then return b end
  local text = block.text(number)
  local sum, live, stored, k, nth = -1, 0, 0, 0, 0
  if text then sum, live, stored, k, nth = double.many(text, 1, 5) end
  b = sum >= 0 and sum < math.huge and live >= 0 and live <= stored and stored <= block.SIZE and k % 1 == 0 and nth % 1 == 0
    and (nth >= 0) == (live > 0) and made(number, text, sum, live, stored, k, nth)
  opened[number] = b
  return b
end

-- A block that holds nobody yet.
function block.create(number)
  local text = string.rep('\0', HEAD + HALF) .. string.rep(double.pack(-1), block.SIZE)
  opened[number] = made(number, text, 0, 0, 0, 0, -1)
  return opened[number]
end

-- What the record at a spot weighs, and its priority; 0 and -1 where there is none.
function block.at(b, spot)
  local w, p = double.at(b.text, HEAD + spot * 8 + 1), double.at(b.text, HEAD + HALF + spot * 8 + 1)
  if w >= 0 and w < math.huge and p >= 0 and p < math.huge then return w, p end
  return 0, -1
end

function block.put(b, spot, w, p, had_w, had_p)
  local at, text = HEAD + spot * 8, b.text
  b.text = text:sub(1, at) .. double.pack(w) .. text:sub(at + 9, at + HALF) .. double.pack(p) .. text:sub(at + HALF + 9)
  b.sum = b.sum - had_w + w
  if (w > 0) ~= (had_w > 0) then b.live = b.live + (w > 0 and 1 or -1) end
  if (p >= 0) ~= (had_p >= 0) then b.stored = b.stored + (p >= 0 and 1 or -1) end
  if not b.is_touched then
    b.is_touched = true
    touched[#touched + 1] = b
  end
end

-- Those that were put into since the last call.
function block.take_touched()
  local list = touched
  touched = {}
  return list
end

-- Its text says again what is so.
function block.close(b)
  b.is_touched, b.counted, b.counted_live = false, b.sum, b.live
  b.text = double.pack(b.sum) .. double.pack(b.live) .. double.pack(b.stored) .. double.pack(b.k) .. double.pack(b.nth)
    .. b.text:sub(HEAD + 1)
  block.rewrite(b.number, b.stored > 0 and b.text)
end

function block.is_open(number)
  return opened[number] ~= nil
end
