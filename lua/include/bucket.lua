-- bucket: weights in bins, so that a draw is a bin, a place in it, and a coin that falls right more often than not. Bin k holds
-- weights in (2^(k-1), 2^k] / FIT; whoever leaves it gives its place to the last one. Changed in memory, written by `commit`.
-- @include weight
-- `buckets`  k -> "<records> <sum of their weights * FIT / 2^k>"
-- `places`   "<k> <place>" -> "<index> <priority>", places from 0 on
local bin = {FIT = 1023 / 1024}
local bins, seats = nil, {} -- as they are now; seats: false where nobody is
local new_bins, new_seats = {}, {}

-- k -> its n records, and the sum of their parts. What nobody of ours has written is left out.
function bin.all()
  if bins then return bins end
  bins = {}
  local stored_bins = redis.call('HGETALL', buckets)
  for i = 1, #stored_bins, 2 do
    local k, n, sum = (stored_bins[i] .. ' ' .. stored_bins[i + 1]):match('^(-?%d%d?%d?%d?) (%d+) ([%d.e+-]+)$')
    if tonumber(sum) then bins[tonumber(k)] = {n = tonumber(n), sum = tonumber(sum)} end
  end
  return bins
end

function bin.count()
  local n = 0
  for _, b in pairs(bin.all()) do n = n + b.n end
  return n
end

function bin.read_seat(text)
  local index, p = (text or ''):match('^(%d+) (%S+)$')
  return weight.is_priority(p) and {index = index, priority = p}
end

function bin.load_seats(keys)
  local missing_keys = {}
  for _, key in ipairs(keys) do
    if seats[key] == nil then missing_keys[#missing_keys + 1] = key end
  end
  for i, text in ipairs(ask_many('HMGET', places, missing_keys)) do seats[missing_keys[i]] = bin.read_seat(text) or false end
end

function bin.seat_key(k, place)
  return k .. ' ' .. int(place)
end

function bin.seat(k, place)
  local key = bin.seat_key(k, place)
  if seats[key] == nil then seats[key] = bin.read_seat(redis.call('HGET', places, key)) or false end
  return seats[key]
end

function bin.set_seat(k, place, to)
  local key = bin.seat_key(k, place)
  seats[key], new_seats[key] = to, true
end

-- The bin of a weight, and the weight as a part of the bin's upper end: in (1/2, 1]. FIT: so that 2^k and a little eps, which
-- is what most records weigh, fills its bin, and the coin falls right at once.
function bin.of(w)
  local part, k = math.frexp(w * bin.FIT)
  if part == 0.5 then return k - 1, 1 end
  return k, part
end

-- Gives the place.
function bin.sit(k, part, record)
  local b = bin.all()[k] or {n = 0, sum = 0}
  bin.set_seat(k, b.n, record)
  b.n, b.sum = b.n + 1, b.sum + part
  bins[k], new_bins[k] = b, true
  return b.n - 1
end

-- Gives the record that has the place now, or nil.
function bin.stand_up(k, part, place)
  local b = bin.all()[k]
  if not b or b.n == 0 then return nil end
  local last = b.n - 1
  local mover = place < last and bin.seat(k, last) or nil
  if mover then bin.set_seat(k, place, mover) end
  bin.set_seat(k, last, false)
  b.n, b.sum = last, last > 0 and b.sum - part or 0
  new_bins[k] = true
  return mover
end

function bin.change(k, place, by, record)
  bin.set_seat(k, place, record)
  bin.all()[k].sum, new_bins[k] = bins[k].sum + by, true
end

-- Fields that were changed, of a hash: what has a value is set, what has none is deleted.
function bin.write_changes(key, names, value_of)
  local set, gone = {}, {}
  for name in pairs(names) do
    local value = value_of(name)
    if value then set[#set + 1], set[#set + 2] = name, value else gone[#gone + 1] = name end
  end
  call_many('HSET', key, set)
  call_many('HDEL', key, gone)
end

function bin.write()
  bin.write_changes(places, new_seats, function(key) return seats[key] and seats[key].index .. ' ' .. seats[key].priority end)
  bin.write_changes(buckets, new_bins, function(k)
    return bins[k].n > 0 and int(bins[k].n) .. ' ' .. string.format('%.17g', bins[k].sum)
  end)
  new_seats, new_bins = {}, {}
end
