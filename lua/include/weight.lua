-- weight: what a priority counts for in a draw, as the sampler's options say.
-- @include book
local weight = {SAMPLERS = {Uniform = true, Fifo = true, Lifo = true, MaxHeap = true, MinHeap = true, Prioritized = true}}
local LEAST, MOST_WEIGHT = 2 ^ -1022, 2 ^ 1023
local alpha, eps
weight.UNIT = 6 -- weights are in units of 2^6

-- A number, a text or nil.
function weight.is_priority(p)
  local number = tonumber(p)
  return number ~= nil and number >= 0 and number < math.huge
end

function weight.in_bins()
  return settings.in_bins
end

function weight.is_ranked()
  return settings.is_ranked
end

function weight.is_used()
  return settings.in_bins or settings.is_ranked
end

function weight.option(name)
  return settings.sampler:match(name .. '=([^,)]+)')
end

-- Whether scripts can go by the text that is stored as the sampler; takes in what it says.
function weight.is_sound()
  local text = settings.sampler or ''
  if not weight.SAMPLERS[text:match('^(%a+)%(.*%)$')] then return false end
  settings.in_bins = text:sub(1, 12) == 'Prioritized('
  settings.is_ranked = text:find('Heap()', 1, true) ~= nil or text:find('within_buffer=True', 1, true) ~= nil
    or text:find("normalize='buffer'", 1, true) ~= nil
  alpha, eps = tonumber(weight.option('alpha')), tonumber(weight.option('eps'))
  return not settings.in_bins or (weight.is_priority(alpha) and weight.is_priority(eps))
end

-- (priority + eps) ^ alpha, as TorchRL's, in units of 2^UNIT, so that the sum of a block is a number; what is so small or
-- large that it would be 0 or infinite stays one.
function weight.of(p)
  local w = (p + eps) ^ alpha
  if w < LEAST then w = LEAST elseif w > MOST_WEIGHT then w = MOST_WEIGHT end
  return w / 64
end
