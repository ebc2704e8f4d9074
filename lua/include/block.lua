-- block: 8 records with neighbouring indices are one value: what each weighs, and its priority.
-- @include double
-- @include weight
-- `priorities`  index / 8, rounded down -> numbers of 8 bytes: the sum of the weights, records that weigh something, records,
--               the block's bin and its place there (-1: in none); then 8 weights; then 8 priorities. A record that cannot
--               be drawn now (priority 0, lent, out of the buffer with its bytes still there) weighs 0; where no record is
--               stored the priority is -1.
local block = {SIZE = 8, HEAD = 40, HALF = 64} -- records; bytes of the five numbers, and of the weights
local texts, changed = {}, {} -- number -> its text, or false: there is none; numbers that `block.write` writes

-- The blocks of these numbers are known from now on.
function block.load(numbers)
  local unknown, n = {}, 0
  for i = 1, #numbers do
    local number = numbers[i]
    if texts[number] == nil then
      texts[number], n = false, n + 1
      unknown[n] = number
    end
  end
  local found = ask_many('HMGET', priorities, unknown)
  for i = 1, n do
    local text = found[i]
    texts[unknown[i]] = text and #text == block.HEAD + 2 * block.HALF and text
  end
end

-- Its text, or false.
function block.text(number)
  return texts[number]
end

function block.weights(text)
  return {double.many(text, block.HEAD + 1, block.SIZE)}
end

function block.total(weights)
  local sum = 0
  for i = 1, block.SIZE do sum = sum + weights[i] end
  return sum
end

-- The sum of the weights, as it is stored.
function block.sum(text)
  return double.at(text, 1)
end

-- The priority at a spot, as its 8 bytes.
function block.bytes(text, spot)
  local at = block.HEAD + block.HALF + spot * 8
  return text:sub(at + 1, at + 8)
end

-- false: it is no more.
function block.rewrite(number, text)
  texts[number], changed[number] = text, true
end

function block.write()
  local set, gone = {}, {}
  for number in pairs(changed) do
    if texts[number] then set[#set + 1], set[#set + 2] = number, texts[number] else gone[#gone + 1] = number end
  end
  call_many('HSET', priorities, set)
  call_many('HDEL', priorities, gone)
  changed = {}
end
