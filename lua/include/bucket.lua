-- bucket: blocks in bins by the sum of their weights, so that a draw is a bin, a place in it, and a coin that falls right more
-- often than not. The end of bin k is 2^(k/4) / FIT; a block is put into the bin with the least end that is not below its sum,
-- and stays while its sum is above half of the end. Whoever leaves a bin gives its place to the last one there.
-- @include block
-- @include seat
-- `buckets`  k -> "<blocks> <the sum of their weights / the end> <records that weigh something>"; idle -> "<blocks>": in no bin
local bin = {FIT = 1024 / 1025, n = 0} -- n: blocks that are in none
local STEPS = {[0] = 1, 2 ^ 0.25, 2 ^ 0.5, 2 ^ 0.75}
local bins, new_bins = nil, {} -- k -> {n, sum, live}; those that `bin.write` writes

-- The end of a bin. FIT: so that 2^k and a little eps, which is what most records weigh, fills its bin.
function bin.finish(k)
  return math.ldexp(STEPS[k % 4], (k - k % 4) / 4) / bin.FIT
end

function bin.new(k, n, sum, live)
  return {n = n, sum = sum, live = live, finish = bin.finish(k)}
end

-- What nobody of ours has written is left out.
function bin.all()
  if bins then return bins end
  bins = {}
  local found = redis.call('HGETALL', buckets)
  for i = 1, #found, 2 do
    local k, n, sum, live = (found[i] .. ' ' .. found[i + 1]):match('^(-?%d%d?%d?%d?) (%d+) ([%d.e+-]+) (%d+)$')
    if tonumber(sum) then bins[tonumber(k)] = bin.new(tonumber(k), tonumber(n), tonumber(sum), tonumber(live)) end
    if found[i] == 'idle' then bin.n = tonumber(found[i + 1]:match('^%d+$')) or 0 end
  end
  return bins
end

-- Records in bins, blocks, and the chunks that their places need.
function bin.count()
  local live, all, pieces = 0, 0, 0
  for _, b in pairs(bin.all()) do
    live, all, pieces = live + b.live, all + b.n, pieces + math.ceil(b.n / seat.CHUNK)
  end
  return live, all + bin.n, pieces
end

function bin.of(sum)
  local part, e = math.frexp(sum * bin.FIT)
  local k = 4 * (e - 1)
  for i = 0, 3 do
    if part * 2 <= STEPS[i] then return k + i end
  end
  return k + 4
end

-- Of the blocks in a bin.
function bin.add(k, sum, live)
  local b = bins[k]
  b.sum, b.live, new_bins[k] = b.sum + sum / b.finish, b.live + live, true
end

function bin.add_idle(n)
  bin.all()
  bin.n, new_bins.idle = bin.n + n, true
end

-- Whether a block that nobody has opened stays in its bin with another sum; if so, that is counted.
function bin.stays(k, sum, now)
  local there = bin.all()[k]
  if not there or now > there.finish or now <= there.finish / 2 then return false end
  bin.add(k, now - sum, 0)
  return true
end

function bin.write()
  local set, gone = {}, {}
  for k in pairs(new_bins) do
    local b = bins[k]
    local text = b and string.format('%d %.17g %d', b.n, b.sum, b.live) or int(bin.n)
    if (b or bin).n > 0 then set[#set + 1], set[#set + 2] = k, text else gone[#gone + 1] = k end
  end
  call_many('HSET', buckets, set)
  call_many('HDEL', buckets, gone)
  new_bins = {}
end
