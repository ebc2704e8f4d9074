-- greet: on a new connection: does the server still know what it has answered? Not after a restart that lost the last second,
--        or a failover. Then the lanes get their numbers back, and no index that the caller was given is given again.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  given         int    the largest index that the caller was given, or 0
-- ARGV[3]  numbers       text   lane:number for each of its lanes: the last number that was answered; separated by spaces
-- Returns  each after a -
--   OK                                nothing is missing
--   REWOUND last left                 acknowledged work was lost: the last index here was `last`; `left`: indices up to
--                                     `given` that are not out of use yet: send again
--   DAMAGED key found expected        the stream of records is missing
--   GONE                              another epoch
-- Writes   counters, requests, lanes, waiters, waiting, holes; records (its last id); what holds that were lost had kept
-- Publishes  wake, standby to waiters
-- @include write
local GAP = 20000 -- indices put out of use in one script
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

-- A lane has its number again, so that a late copy of what was answered is refused; what it had under way here is over.
-- If nothing but its absence speaks for a rewound server, it may have gone with a write that was applied: it registers anew.
local function catch_up(lost, proven, time)
  if lost.known then unhold(lost.id, indices_of(drawn_by(lost.known))) end
  leave_line(lost.id)
  redis.call('HSET', requests, lost.id, lost.number .. ' greet ' .. (proven and 'REWOUND' or 'FORGOTTEN'))
  redis.call('ZADD', lanes, int(time), lost.id)
end

-- Nobody will be given the indices up to `index`. Who holds one of them from before names a record that is not there.
local function put_out_of_use(index)
  local id = '0-' .. int(index)
  if type(redis.pcall('XADD', records, id, 'd', '')) ~= 'string' then return end -- the stream is ahead of it
  redis.call('XDEL', records, id)
  if not settings.consume and present() > 0 then
    leave_gap(index)
  else
    set_count('last', index)
    if not settings.consume then set_count('first', index + 1) end
  end
end

local lost, fell = behind()
if given <= last and #lost == 0 then return {'OK', '-'} end
redis.call('DEL', none)
local time, left = now(), 0
local proven = fell or given > last
if proven then redis.call('HSET', counters, 'rewound_at', int(time)) end
proven = proven or time - (redis.call('HGET', counters, 'rewound_at') or -LANE_US) < LANE_US -- by another client
for _, one in ipairs(lost) do catch_up(one, proven, time) end
if given > last then
  local plain = settings.consume or present() == 0
  local to = plain and given or math.min(given, last + GAP)
  put_out_of_use(to)
  left = given - to
end
if left == 0 then bump('rewound', 1) end
wake(time)
commit()
return {'REWOUND', '-', int(last), int(left)}
