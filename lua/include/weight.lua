-- weight: what a priority counts for in a draw, as the sampler's options say.
-- @include book
local weight = {}
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
  return tonumber(settings.sampler:match(name .. '=([^,)]+)'))
end

-- (priority + eps) ^ alpha, as TorchRL's; what is so small or large that it would be 0 or infinite stays a number.
function weight.of(p)
  settings.alpha = settings.alpha or weight.option('alpha')
  settings.eps = settings.eps or weight.option('eps')
  return math.min(MOST_WEIGHT, math.max(LEAST, (p + settings.eps) ^ settings.alpha))
end
