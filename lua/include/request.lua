-- request: each call on a lane has a number; a number is applied at most once, and its answer is kept.
-- @include back
-- @include wake
-- ARGV[1]  epoch         text  of the buffer, when the caller opened it
-- ARGV[2]  lane          text  the caller's lane
-- ARGV[3]  number        int   of this request on the lane
-- ARGV[4]  open_number   int   lowest number of the lane whose reply never came, or 0
local epoch, lane, number, open_number = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local LANE_US = 3600 * 1000000

-- The lane's last number and its answer: verb, words. One that none of our scripts wrote is as good as none; nor is that of
-- a lane that greet.lua found missing: what it had under way is not known.
local function stored(of)
  local text = redis.call('HGET', requests, of) or ''
  local last, verb, words = text:match('^(%d+) (%l+) (%u.*)$')
  if not last or (verb == 'greet' and words == 'FORGOTTEN') then return nil end
  return {number = tonumber(last), verb = verb, words = split(words)}
end

-- What a stored answer "OK <n> <live>[,<whole>] <l or -><era> <lease or -> <index>[:<use>[c]]…" of a draw gave out:
-- {index, consumed by it}…, n, and the lease.
local function drawn_by(last)
  local out = {}
  if last.verb ~= 'sample' or last.words[1] ~= 'OK' then return out, nil, nil end
  for i = 6, #last.words do
    local index, mark = last.words[i]:match('^(%d+):?%d*(c?)$')
    if index then out[#out + 1] = {index, mark == 'c'} end
  end
  return out, tonumber(last.words[2]), last.words[5] ~= '-' and last.words[5] or nil
end

local function indices_of(drawn)
  local out = {}
  for i, record in ipairs(drawn) do out[i] = record[1] end
  return out
end

local function forget_lane(old)
  local last = stored(old)
  if last then unhold(old, indices_of((drawn_by(last)))) end
  redis.call('HDEL', requests, old)
  redis.call('ZREM', lanes, old)
  redis.call('ZREM', writers, old)
  leave_line(old)
end

-- Lanes unused for an hour go when a new one comes, two for one, so that they never pile up.
local function expire_lanes(time)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', lanes, '-inf', int(time - LANE_US), 'LIMIT', 0, 2)) do
    forget_lane(old)
  end
end

-- What came through a gate that was not closed (`mend`) may be too old.
local function drop_incoming()
  stale.drop(stale.overdue(count('version'), many()))
  redis.call('HDEL', config, 'incoming')
end

-- Leases and holds that ran out: so many at each script that no call has much to do.
local function reclaim(time)
  if settings.incoming then drop_incoming() end
  if cut.state() and cut.state().ends < time then cut.close('late') end
  let_go_of_read(200)
  reclaim_leases(time)
  for _, slow in ipairs(redis.call('ZRANGEBYSCORE', holds, '-inf', int(time), 'LIMIT', 0, 2)) do
    local last = stored(slow)
    if last then
      unhold(slow, indices_of((drawn_by(last))))
      redis.call('HSET', requests, slow, int(last.number) .. ' sample LAPSED')
    end
    redis.call('ZREM', holds, slow) -- also one whose request somebody deleted by hand
    bump('lapsed', 1)
  end
end

-- Judges a request. Gives the answer where the number was judged before or may not be; else nil, and what became of the
-- lane's open number: `applied` (a draw is undone now, a write stands), `never` (its late copy will be refused), or `-`.
local function judge(keep_place)
  local last = stored(lane)
  if not last then return {'FORGOTTEN', '-'} end
  if number == last.number then
    table.insert(last.words, 2, '-')
    return last.words
  end
  if number < last.number then return {'STALE', '-'} end
  local became = '-'
  if open_number > 0 then became = last.number >= open_number and 'applied' or 'never' end
  local drawn, n, lease = drawn_by(last)
  if n and became == 'applied' then go_back(lane, drawn, n, lease, last.words[4])
  elseif #drawn > 0 then unhold(lane, indices_of(drawn)) end
  if not keep_place and last.words[1] ~= 'OK' then leave_line(lane) end
  return nil, became
end

-- The start of every numbered request: guards, the clock, what ran out, the number. Gives a reply to send back at once,
-- or nil, what became of the open number, and the time. `grows`: the first write is one that needs memory, so that a
-- server without any refuses the script whole; otherwise a DEL of nothing, so that it lets through what frees memory.
local function accept(grows, keep_place)
  local refused = enter(epoch)
  if refused then return refused end
  if not grows then redis.call('DEL', none) end
  local time = now()
  if grows then commit() end
  reclaim(time)
  local again, became = judge(keep_place)
  if again then commit() end
  return again, became, time
end

-- The end of every numbered request: its answer is kept, whom the change concerns is woken, counters are written.
-- The reply is the answer, with what became of the open number behind its first word.
local function reply(verb, became, words, time)
  redis.call('HSET', requests, lane, int(number) .. ' ' .. verb .. ' ' .. table.concat(words, ' '))
  redis.call('ZADD', lanes, int(time), lane)
  wake(time)
  commit()
  table.insert(words, 2, became)
  return words
end
