-- line: the blocked calls, in order of arrival. A waiter's id is its lane.
-- @include state
local LINE = 1024 -- waiters looked at in one script
local hunger = 0 -- the most records that a reader in the line, as it was read last, needs
local WAKE = config:sub(1, -7) .. 'wake:' -- what every client's channel starts with

-- side: r, which waits to draw, or w, which waits to write; need, take; since: when it came; ends: when it is dropped unless
-- it polls; turn: end of its turn (0: not notified); standby: when it was told to look again (0: not told); lost: 1 when a
-- notice reached nobody; turn_us: how long its turn is; channel: where its client listens. Times in microseconds.
local FIELDS = {'need', 'take', 'since', 'ends', 'turn', 'standby', 'lost', 'turn_us'}
local WAITER = '^([rw])' .. string.rep(' (%d+)', #FIELDS) .. ' (.*)$'

local function write_waiter(lane, w)
  local words = {w.side}
  for i, name in ipairs(FIELDS) do words[i + 1] = int(w[name]) end
  words[#words + 1] = w.channel
  redis.call('HSET', waiting, lane, table.concat(words, ' '))
end

-- nil for a text that none of our scripts wrote: its channel might be anybody's.
local function parse_waiter(lane, text)
  local found = {(text or ''):match(WAITER)}
  local channel = found[#FIELDS + 2]
  if not channel or channel:sub(1, #WAKE) ~= WAKE then return nil end
  local w = {lane = lane, side = found[1], channel = channel}
  for i, name in ipairs(FIELDS) do w[name] = tonumber(found[i + 1]) end
  return w
end

local function leave_line(lane)
  if redis.call('ZREM', waiters, lane) == 1 then redis.call('HDEL', waiting, lane) end
end

local function join_end(lane)
  redis.call('ZADD', waiters, redis.call('HINCRBY', counters, 'arrivals', 1), lane)
end

-- Who stands in the line already, on the same side, keeps its place.
local function join_line(lane, w)
  local old = redis.call('ZSCORE', waiters, lane) and parse_waiter(lane, redis.call('HGET', waiting, lane))
  if old and old.side == w.side then w.since = old.since else join_end(lane) end
  write_waiter(lane, w)
end

-- The line as it is now: who missed three polls is dropped, who let a turn run out stands at the end.
local function read_line(time)
  local line, late = {}, {}
  hunger = 0
  local ids = redis.call('ZRANGE', waiters, 0, LINE - 1)
  if #ids == 0 then return line end
  for i, text in ipairs(ask_many('HMGET', waiting, ids)) do
    local w = parse_waiter(ids[i], text)
    if w and w.side == 'r' and w.lost == 0 then hunger = math.max(hunger, w.need) end
    if not w or w.ends < time then
      leave_line(ids[i])
    elseif w.turn > 0 and w.turn < time then
      w.turn = 0
      join_end(w.lane)
      write_waiter(w.lane, w)
      late[#late + 1] = w
    else
      line[#line + 1] = w
    end
  end
  for _, w in ipairs(late) do line[#line + 1] = w end
  return line
end
