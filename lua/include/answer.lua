-- answer: what a draw is told, and told again when it asks again. See sample.lua.
-- @include request
-- @include draw
-- @include fetch
local batch_size = tonumber(ARGV[5])
local SMALL, SMALL_BATCH = 4096, 4194304 -- bytes; above them payloads cost less by XRANGE (docs/benchmarks.md)

local function is_small()
  local bytes = tonumber(settings.record_bytes)
  return ARGV[13] == '1' and bytes <= SMALL and batch_size * bytes <= SMALL_BATCH
end

local first, foreseen = '0', false -- see foreseeable; whether the caller knows what it is given

local function look_ahead(n)
  first = int(foreseeable())
  foreseen = n == batch_size and first ~= '0' and ARGV[14] == first .. ' ' .. int(count('sampleable_size'))
end

local function answer(became, n, indices, live, last, lease, counts, odd, payloads)
  local read = payloads and 'p' or foreseen and 'f' or ''
  local out = {'OK', became, int(n), live, settings.schema_hash, read .. last, lease, table.concat(indices, ' '),
               table.concat(counts, ' '), odd[1], odd[2], age.told(indices), first}
  for _, payload in ipairs(payloads or {settings.record_bytes}) do out[#out + 1] = payload end
  return out
end

local forged = {'DAMAGED', '-', requests, 'has an answer to a draw that none was given', 'what scripts wrote'}

-- The same number again: the same records; those that were not kept are drawn again by the same seed, and not counted.
local function repeated(words)
  local n, last, lease, indices, counts = tonumber(words[3]), (words[5] or ''):sub(1, 1), words[6], {}, {}
  local live, whole = (words[4] or ''):match('^(%d+),?(.*)$')
  for i = 7, #words do
    local index, use = words[i]:match('^(%d+):?(%d*)c?$')
    if not index then return forged end
    indices[i - 6], counts[i - 6] = index, use ~= '' and use or nil
  end
  if not (n and n >= 1 and n <= batch_size and live and lease) then return forged end
  if #indices == 0 then live, whole = int(count('sampleable_size')), '' end -- those of the draw which is made now
  look_ahead(#indices == 0 and n)
  if foreseen then return answer('-', n, {}, live, last, lease, {}, {'', ''}) end
  if #indices == 0 and count('sampleable_size') >= (is_distinct() and n or 1) then indices = draw(n) or {} end
  local payloads = is_small() and fetch(indices) or nil
  if #indices == 0 or (is_small() and not payloads) then return {'LAPSED', '-'} end
  local each, now_whole = weighted.odds(indices)
  whole = weight.is_used() and whole ~= '' and whole:gsub(',', ' ') or now_whole
  return answer('-', #indices, indices, live, last, lease, counts, {each, whole}, payloads)
end
