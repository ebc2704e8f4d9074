-- greet: on a new connection: does the server still know what it has answered? Not after a restart that lost the last second,
--        or a failover. Then the lanes get their numbers back, and no index that anybody was given is given again.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  given         int    the largest index that the caller was given, or 0
-- ARGV[3]  numbers       text   lane:number for each of its lanes: the last number that was answered; separated by spaces
-- Returns  each after a -
--   OK                                nothing that the caller knows of is missing
--   REWOUND last                      acknowledged work was lost: the last index here was `last`
--   DAMAGED key found expected        the stream of records is missing
--   GONE                              another epoch
-- Writes   config, counters, requests, lanes, waiters, waiting; records (its last id); what holds that were lost had kept
-- Publishes  wake, standby to waiters
-- @include write
-- @include process
local JUMP, SHARE = 4294967296, 65536 -- so many indices behind the last one may have been given; at most a share of all
local refused = enter(epoch)
if refused then return refused end
local given, last = tonumber(ARGV[2]), count('last')

-- The lanes that have a lower number here, or none; and whether one has a lower one.
local function behind()
  local out, fell = {}, false
  for id, answered in ARGV[3]:gmatch('(%S+):(%d+)') do
    local known = stored(id)
    if known and known.number < tonumber(answered) or redis.call('HEXISTS', requests, id) == 0 then
      out[#out + 1] = {id = id, number = answered, known = known}
      fell = fell or known ~= nil
    end
  end
  return out, fell
end

-- The name of this process, if it is not the one that the buffer was on; and the name of that.
local function another_process()
  local run, known = this_process(), redis.call('HGET', config, 'server')
  return run ~= known and run or nil, known
end

-- A lane has its number again, so that a late copy of what was answered is refused; what it had under way here is over.
-- If nothing but its absence speaks for a rewound server, it may have gone with a write that was applied: it registers anew.
local function catch_up(lost, proven, time)
  if lost.known then unhold(lost.id, indices_of(drawn_by(lost.known))) end
  leave_line(lost.id)
  redis.call('HSET', requests, lost.id, lost.number .. ' greet ' .. (proven and 'REWOUND' or 'FORGOTTEN'))
  redis.call('ZADD', lanes, int(time), lost.id)
end

-- Nobody will be given an index that anybody may have been given by a server that is no more: whoever holds one names a
-- record that is not there.
local function jump()
  local from = math.max(given, last)
  local high = math.min(MAX_INDEX, from + math.min(JUMP, math.floor((MAX_INDEX - from) / SHARE)))
  if are_too_many() or skip_foreign() or high <= count('last') then return end -- damage is told by the next write
  local id = '0-' .. int(high)
  redis.call('XADD', records, id, 'd', '')
  redis.call('XDEL', records, id)
  skip_to(high)
end

local lost, fell = behind()
local run, known = another_process()
local told = tonumber(redis.call('HGET', counters, 'rewound_to') or 0) or 0 -- up to this index it was said before
local beyond = given > told and (given > last or is_skipped(given))
if not (run or beyond) and #lost == 0 then return {'OK', '-'} end
redis.call('DEL', none)
local time = now()
local proven = fell or beyond
if proven then redis.call('HSET', counters, 'rewound_at', int(time)) end
proven = proven or time - (redis.call('HGET', counters, 'rewound_at') or -LANE_US) < LANE_US -- by another client
for _, one in ipairs(lost) do catch_up(one, proven, time) end
if run then redis.call('HSET', config, 'server', run) end
if run and known then bump('restarts', 1) end
if (run and known) or given > last then jump() end
local answer = {'OK', '-'}
if beyond or #lost > 0 then
  answer = {'REWOUND', '-', int(beyond and math.min(last, unskipped(given)) or last)}
  bump('rewound', 1)
end
if beyond then redis.call('HSET', counters, 'rewound_to', int(given)) end
wake(time)
commit()
return answer
