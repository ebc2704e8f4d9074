-- weight: what a priority counts for, as the options of the sampler and of the remover say.
-- @include book
local weight = {SAMPLERS = {Uniform = true, Fifo = true, Lifo = true, Freshest = true, MaxHeap = true, MinHeap = true,
  Prioritized = true}}
local LEAST, MOST_WEIGHT = 2 ^ -1022, 2 ^ 1023
local HEAPS = {['MaxHeap()'] = true, ['MinHeap()'] = true}
local alpha, eps
weight.UNIT = 6 -- weights are in units of 2^6
local unit = 2 ^ weight.UNIT

-- A number, a text or nil.
function weight.is_priority(p)
  local number = tonumber(p)
  return number ~= nil and number >= 0 and number < math.huge
end

local function is_prioritized(selector)
  return selector:sub(1, 12) == 'Prioritized('
end

-- What follows from the settings. Asked for each record, so it is worked out once.
local worked_out

local function meaning()
  if worked_out then return worked_out end
  local sampler, remover = settings.sampler, settings.remover
  local by_weight, heap = is_prioritized(sampler), HEAPS[sampler] or HEAPS[remover] or false
  worked_out = {hides = by_weight, in_bins = by_weight or is_prioritized(remover)}
  worked_out.is_used = worked_out.in_bins or heap
  worked_out.is_ranked = heap or sampler:find('within_buffer=True', 1, true) or sampler:find("normalize='buffer'", 1, true)
  return worked_out
end

-- Whether priority 0 hides a record: where draws go by weight.
function weight.hides()
  return meaning().hides
end

function weight.in_bins()
  return meaning().in_bins
end

function weight.is_ranked()
  return meaning().is_ranked
end

function weight.is_used()
  return meaning().is_used
end

local function option(selector, name)
  return selector:match(name .. '=([^,)]+)')
end

-- Of the sampler and the remover, which have the same where both have it.
function weight.option(name)
  return option(weight.hides() and settings.sampler or settings.remover, name)
end

local function is_selector(text)
  if not weight.SAMPLERS[(text or ''):match('^(%a+)%(.*%)$')] then return false end
  return not is_prioritized(text) or (weight.is_priority(option(text, 'alpha')) and weight.is_priority(option(text, 'eps')))
end

-- The setting that scripts cannot go by, or nil. Takes in what the others say.
function weight.unsound()
  if not is_selector(settings.sampler) then return 'sampler' end
  if not is_selector(settings.remover) then return 'remover' end
  for _, name in ipairs({'alpha', 'eps'}) do
    if is_prioritized(settings.remover) and option(settings.remover, name) ~= weight.option(name) then return 'remover' end
  end
  alpha, eps = tonumber(weight.option('alpha')), tonumber(weight.option('eps'))
  return nil
end

-- (priority + eps) ^ alpha, as TorchRL's, in units of 2^UNIT, so that the sum of a block is a number; what is so small or
-- large that it would be 0 or infinite stays one.
function weight.of(p)
  local w = (p + eps) ^ alpha
  if w < LEAST then w = LEAST elseif w > MOST_WEIGHT then w = MOST_WEIGHT end
  return w / unit
end
