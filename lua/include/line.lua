-- line: the blocked calls, in order of arrival. A waiter's id is its lane.
-- @include state
local LINE = 1024 -- waiters looked at in one script
local WAKE = config:sub(1, -7) .. 'wake:' -- what every client's channel starts with

-- need, take; ends: when it is dropped unless it polls; turn: end of its turn (0: not notified); standby: when it was told
-- to look again (0: not told); lost: 1 when a notice reached nobody; channel: where its client listens. Times in microseconds.
local function write_waiter(lane, w)
  redis.call('HSET', waiting, lane, table.concat(
    {int(w.need), int(w.take), int(w.ends), int(w.turn), int(w.standby), int(w.lost), w.channel}, ' '))
end

local function leave_line(lane)
  if redis.call('ZREM', waiters, lane) == 1 then redis.call('HDEL', waiting, lane) end
end

local function join_end(lane)
  redis.call('ZADD', waiters, redis.call('HINCRBY', counters, 'arrivals', 1), lane)
end

local function join_line(lane, w)
  if not redis.call('ZSCORE', waiters, lane) then join_end(lane) end
  write_waiter(lane, w)
end

-- nil for a text that none of our scripts wrote: its channel might be anybody's.
local function parse_waiter(lane, text)
  local need, take, ends, turn, standby, lost, channel = text:match('^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not need or channel:sub(1, #WAKE) ~= WAKE then return nil end
  return {lane = lane, need = tonumber(need), take = tonumber(take), ends = tonumber(ends), turn = tonumber(turn),
          standby = tonumber(standby), lost = tonumber(lost), channel = channel}
end

-- The line as it is now: who missed three polls is dropped, who let a turn run out stands at the end.
local function read_line(time)
  local line, late = {}, {}
  local ids = redis.call('ZRANGE', waiters, 0, LINE - 1)
  if #ids == 0 then return line end
  for i, text in ipairs(ask_many('HMGET', waiting, ids)) do
    local w = text and parse_waiter(ids[i], text)
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
