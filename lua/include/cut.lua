-- cut: while a dump is open it has still to read what there was at one moment: of those records the first change notes what
-- they were, and their bytes stay. A dump reads in order of index, so what it has read is free again.
-- @include live
-- `cut` in `config`: "id last done ends most": indices above `done` up to `last` are still to be read; ends: microseconds, when
-- nobody asks for more; most: bytes that may be kept for it. `cut_end`: "id word", how the last one ended before its time
-- `noted`  index -> "uses priority version writer" as they were, - where the buffer has none; `out`: it was not in the buffer
-- `kept`   zset: indices whose bytes stay for the dump; each counts as one hold in `held`
local cut = {NOTE = 150} -- bytes of a note, about
local state -- nil: not looked yet; false: there is none

function cut.state()
  if state ~= nil then return state end
  local id, last, done, ends, most = (settings.cut or ''):match('^(%x+) (%d+) (%d+) (%d+) (%d+)$')
  state = id and {id = id, last = tonumber(last), done = tonumber(done), ends = tonumber(ends), most = tonumber(most)} or false
  return state
end

function cut.write(id, last, done, ends, most)
  settings.cut = table.concat({id, int(last), int(done), int(ends), int(most)}, ' ')
  redis.call('HSET', config, 'cut', settings.cut)
  state = nil
end

-- It is over; `why`: before its end. What was kept goes a little at a time: see hold.lua.
function cut.close(why)
  if not settings.cut then return end
  if why and cut.state() then redis.call('HSET', config, 'cut_end', cut.state().id .. ' ' .. why) end
  redis.call('HDEL', config, 'cut')
  redis.call('UNLINK', noted)
  settings.cut, state = nil, false
end

-- Those that a dump has still to read.
function cut.covered(indices)
  local c, out = cut.state(), {}
  if not c then return out end
  for _, index in ipairs(indices) do
    local number = tonumber(index)
    if number > c.done and number <= c.last then out[#out + 1] = int(number) end
  end
  return out
end

-- One word, whatever somebody wrote there.
local function word_of(value)
  return not value and '-' or value:match('^%S+$') or '?'
end

-- What a dump tells of each record beside its bytes.
function cut.facts(indices)
  local counted, dated = (settings.consume or 0) > 1, age.is_kept()
  local had = counted and ask_many('HMGET', uses, indices) or {}
  local of = dated and age.of(indices) or {}
  local by = dated and ask_many('HMGET', authors, indices) or {}
  local p = weight.is_used() and priority.bytes(indices)
  local out = {}
  for i = 1, #indices do
    out[i] = word_of(counted and had[i]) .. ' ' .. (p and string.format('%.17g', double.at(p, 8 * i - 7)) or '-')
      .. ' ' .. (of[i] and int(of[i]) or '-') .. ' ' .. word_of(by[i])
  end
  return out
end

-- More than the dump was allowed: it has to end, so that nobody else does.
local function end_if_too_much(c)
  local mean = settings.bytes_total / math.max(1, settings.records_total)
  if redis.call('ZCARD', kept) * mean + redis.call('HLEN', noted) * cut.NOTE > c.most then cut.close('held') end
end

-- Called before these change. `are_out`: they come back into the buffer; others that are parting were out at that moment, too.
function cut.note(indices, are_out)
  local mine, new, pairs_ = cut.covered(indices), {}, {}
  if #mine == 0 then return end
  for i, known in ipairs(ask_many('HMGET', noted, mine)) do
    if not known then new[#new + 1] = mine[i] end
  end
  local facts, left = cut.facts(new), ask_many('SMISMEMBER', parting, new)
  for i, index in ipairs(new) do
    local word = (are_out or left[i] == 1) and 'out' or facts[i]
    if not word:find('^%S+ %-1 ') then -- else nothing is stored there
      pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = index, word
    end
  end
  call_many('HSET', noted, pairs_)
  end_if_too_much(cut.state())
end

-- The bytes of those that leave and are still to be read stay. Gives those that were not kept before.
function cut.keep(indices)
  local mine, new, members = cut.covered(indices), {}, {}
  for i, score in ipairs(ask_many('ZMSCORE', kept, mine)) do
    if not score then
      new[#new + 1] = mine[i]
      members[#members + 1], members[#members + 2] = mine[i], mine[i]
    end
  end
  call_many('ZADD', kept, members)
  return new
end

-- At most n of those that are kept for nothing any more; they are kept no more.
function cut.read_ones(n)
  local upto = cut.state() and int(cut.state().done) or '+inf'
  local out = redis.call('ZRANGEBYSCORE', kept, '-inf', upto, 'LIMIT', 0, n)
  call_many('ZREM', kept, out)
  return out
end
