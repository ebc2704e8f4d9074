-- bucket: weights in bins, so that a draw is a bin, a place in it, and a coin that falls right more often than not. Bin k holds
-- weights in (2^(k-1), 2^k] / FIT; whoever leaves it gives its place to the last one. Changed in memory, written by `commit`.
-- @include weight
-- `buckets`  k -> "<records> <sum of their weights * FIT / 2^k>"
-- `places`   "<k> <place>" -> "<index> <priority>", places from 0 on
-- A record here is {index, p: its priority as text, k and spot: where it lies, part: of its bin's upper end, once asked for}.
local bin = {FIT = 1023 / 1024}
local bins, seats, homes = nil, {}, {} -- seats: k -> spot -> record; homes: index -> record; false: nobody
local new_bins, new_seats, new_homes = {}, {}, {} -- those that `commit` writes

-- k -> its n records, and the sum of their parts. What nobody of ours has written is left out.
function bin.all()
  if bins then return bins end
  bins = {}
  local found = redis.call('HGETALL', buckets)
  for i = 1, #found, 2 do
    local k, n, sum = (found[i] .. ' ' .. found[i + 1]):match('^(-?%d%d?%d?%d?) (%d+) ([%d.e+-]+)$')
    if tonumber(sum) then bins[tonumber(k)] = {n = tonumber(n), sum = tonumber(sum)} end
  end
  return bins
end

function bin.count()
  local n = 0
  for _, b in pairs(bin.all()) do n = n + b.n end
  return n
end

-- The bin of a weight, and the weight as a part of the bin's upper end: in (1/2, 1]. FIT: so that 2^k and a little eps, which
-- is what most records weigh, fills its bin, and the coin falls right at once.
function bin.of(p)
  local part, k = math.frexp(weight.of(p) * bin.FIT)
  if part == 0.5 then return k - 1, 1 end
  return k, part
end

function bin.part(record)
  if not record.part then
    local _, part = bin.of(record.p)
    record.part = part
  end
  return record.part
end

-- What is stored at a spot, as it is now.
local function take_in(k, spot, text)
  local index, p = (text or ''):match('^(%d+) (%S+)$')
  local record = weight.is_priority(p) and {index = index, p = p, k = k, spot = spot}
  seats[k][spot] = record
  if record and homes[index] == nil then homes[index] = record end
end

function bin.seat(k, spot)
  seats[k] = seats[k] or {}
  if seats[k][spot] == nil then take_in(k, spot, redis.call('HGET', places, k .. ' ' .. int(spot))) end
  return seats[k][spot]
end

local function set_seat(k, spot, record)
  seats[k] = seats[k] or {}
  new_seats[k] = new_seats[k] or {}
  seats[k][spot], new_seats[k][spot] = record, true
end

function bin.sit(record)
  local k, part = bin.of(record.p)
  local b = bin.all()[k] or {n = 0, sum = 0}
  record.k, record.spot, record.part = k, b.n, part
  set_seat(k, b.n, record)
  b.n, b.sum = b.n + 1, b.sum + part
  bins[k], new_bins[k] = b, true
end

-- The last one of its bin has its place from now on.
function bin.stand_up(record)
  local k, spot, b = record.k, record.spot, bin.all()[record.k]
  local part = bin.part(record)
  record.k, record.spot, record.part = nil, nil, nil
  if not b or b.n == 0 then return end
  local last = b.n - 1
  local mover = bin.seat(k, last)
  if mover and mover ~= record then
    set_seat(k, spot, mover)
    mover.spot = spot
    homes[mover.index], new_homes[mover.index] = mover, true
  end
  set_seat(k, last, false)
  b.n, b.sum, new_bins[k] = last, last > 0 and b.sum - part or 0, true
end

-- Another priority, of the same bin: it stays in its place. Gives whether that is so.
function bin.change(record, p)
  local k, part = bin.of(p)
  local b = bin.all()[k]
  if k ~= record.k or not b then return false end
  b.sum, new_bins[k] = b.sum + part - bin.part(record), true
  record.p, record.part = p, part
  set_seat(k, record.spot, record)
  return true
end

function bin.write()
  local set, gone = {}, {}
  for k, new in pairs(new_seats) do
    for spot in pairs(new) do
      local record, key = seats[k][spot], k .. ' ' .. int(spot)
      if record then set[#set + 1], set[#set + 2] = key, record.index .. ' ' .. record.p else gone[#gone + 1] = key end
    end
  end
  call_many('HSET', places, set)
  call_many('HDEL', places, gone)
  set, gone = {}, {}
  for k in pairs(new_bins) do
    local b = bins[k]
    if b.n > 0 then set[#set + 1], set[#set + 2] = k, string.format('%d %.17g', b.n, b.sum) else gone[#gone + 1] = k end
  end
  call_many('HSET', buckets, set)
  call_many('HDEL', buckets, gone)
  new_seats, new_bins = {}, {}
end
