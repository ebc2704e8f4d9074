-- exchange: what the buffer holds is replaced by a copy that was built beside it, in one step.
-- KEYS has the copy's keys behind those of the buffer, in the same order.
-- @include request
local exchange = {}
local KEYS_EACH = #KEYS / 2
local MOVED = {schema = true, schema_hash = true, record_bytes = true, sampler = true, remover = true, rate_limiter = true,
  law = true, max_priority = true, skipped = true} -- of `config`
exchange.OWN = {first = true, last = true, sampleable_size = true, storage_size = true, hidden = true, used = true, unseen = true,
  leased = true, parting = true} -- of `counters`, as the copy has them

local function copy_of(key)
  for i = 1, KEYS_EACH do
    if KEYS[i] == key then return KEYS[KEYS_EACH + i] end
  end
end

-- A setting of the copy.
function exchange.setting(name)
  return redis.call('HGET', copy_of(config), name)
end

function exchange.counter(name)
  return tonumber(redis.call('HGET', copy_of(counters), name) or 0)
end

-- All that the buffer holds goes, of whichever type it is.
function exchange.clear()
  redis.call('UNLINK', records, inbox, order, holes, uses, parting, held, holds, leases, leased, priorities, places, buckets,
    ranked, versions, authors, shares, noted, kept)
end

local function move_keys()
  exchange.clear()
  for _, key in ipairs({records, order, holes, uses, priorities, places, buckets, ranked, versions, authors}) do
    if redis.call('EXISTS', copy_of(key)) == 1 then
      redis.call('RENAME', copy_of(key), key)
      redis.call('PERSIST', key)
    end
  end
end

local function move_fields()
  for name in pairs(MOVED) do
    local value = exchange.setting(name)
    if value then redis.call('HSET', config, name, value) else redis.call('HDEL', config, name) end
  end
  for name in pairs(exchange.OWN) do redis.call('HSET', counters, name, int(exchange.counter(name))) end
end

-- Batches that were drawn before are no part of what is there now: whoever asks for one again is told, and draws anew.
local function lapse_draws()
  local found, set = redis.call('HGETALL', requests), {}
  for i = 1, #found, 2 do
    local last = found[i + 1]:match('^(%d+) sample OK ')
    if last then set[#set + 1], set[#set + 2] = found[i], last .. ' sample LAPSED' end
  end
  call_many('HSET', requests, set)
end

-- `high`: no index up to this one is given to a new record; `totals`: names and values of counters with spaces between.
function exchange.run(high, totals, time)
  local era, last = count('era') + 1, math.max(count('last'), high)
  cut.close('loaded')
  commit()
  move_keys()
  move_fields()
  local words = split(totals)
  if #words > 0 then redis.call('HSET', counters, unpack(words)) end
  redis.call('HSET', counters, 'era', int(era), 'rewound_to', int(last))
  redis.call('UNLINK', copy_of(config), copy_of(counters))
  lapse_draws()
  read_settings()
  read_counters()
  limit.law = limit.parse(settings.law)
  read_ranges(settings.skipped or '')
  if last > count('last') then
    redis.call('XADD', records, '0-' .. int(last), 'd', '')
    redis.call('XDEL', records, '0-' .. int(last))
    skip_to(last)
  end
  set_count('clock', time)
end
