-- swap: the short way for most updates: a record can be drawn before and after, and its block stays in its bin.
-- @include sort

-- The record at a spot of block `id` has this weight and this priority now. Gives false, with nothing changed, where that takes
-- more.
local function swap(id, spot, w, p)
  local text = block.text(id)
  if not text or block.is_open(id) then return false end
  local at = block.HEAD + spot * 8
  local far = at + block.HALF
  local had_w, had_p = double.at(text, at + 1), double.at(text, far + 1)
  if not (had_w > 0 and had_w < math.huge and had_p >= 0) then return false end
  local sum, k = double.at(text, 1), double.at(text, 25)
  local sum_now = sum - had_w + w
  if not bin.stays(k, sum, sum_now) then return false end
  block.rewrite(id, double.pack(sum_now) .. text:sub(9, at) .. double.pack(w) .. text:sub(at + 9, far) .. double.pack(p)
    .. text:sub(far + 9))
  return true
end
