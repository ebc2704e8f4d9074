-- weight: what a priority counts for in a draw, as the sampler's options say.
-- @include book
local weight = {SAMPLERS = {Uniform = true, Fifo = true, Lifo = true, Freshest = true, MaxHeap = true, MinHeap = true,
  Prioritized = true}}
local LEAST, MOST_WEIGHT = 2 ^ -1022, 2 ^ 1023

function weight.is_heap()
  return settings.sampler == 'MaxHeap()' or settings.sampler == 'MinHeap()'
end

-- Of a text, or nil.
function weight.is_priority(p)
  local number = tonumber(p)
  return number ~= nil and number >= 0 and number < math.huge
end

function weight.in_bins()
  return settings.sampler:sub(1, 12) == 'Prioritized('
end

function weight.is_ranked()
  return weight.is_heap() or settings.sampler:find('within_buffer=True', 1, true)
    or settings.sampler:find("normalize='buffer'", 1, true)
end

function weight.is_used()
  return weight.in_bins() or weight.is_heap()
end

function weight.option(name)
  return settings.sampler:match(name .. '=([^,)]+)')
end

-- Whether scripts can go by the text that is stored as the sampler.
function weight.is_sound()
  if not weight.SAMPLERS[(settings.sampler or ''):match('^(%a+)%(.*%)$')] then return false end
  return not weight.in_bins() or (weight.is_priority(weight.option('alpha')) and weight.is_priority(weight.option('eps')))
end

-- (priority + eps) ^ alpha, as TorchRL's; what is so small or large that it would be 0 or infinite stays a number.
function weight.of(p)
  settings.alpha = settings.alpha or tonumber(weight.option('alpha'))
  settings.eps = settings.eps or tonumber(weight.option('eps'))
  return math.min(MOST_WEIGHT, math.max(LEAST, (p + settings.eps) ^ settings.alpha))
end
