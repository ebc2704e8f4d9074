-- age: under which version each record was written, where the buffer goes by that; and who wrote it, until it is handed out.
-- @include shares
-- `versions`  zset: index in 16 digits -> version; where the record cannot be drawn now (lent, or out with its bytes still
--             there) -1 - version, so that a look at what is 0 or more passes it over
-- `authors`   hash: index -> its writer's number in `shares`, of those that were never handed out
local age = {}
local IN, OUT, GONE = 1, 2, 3
local moves = {} -- index -> where it is now: `commit` writes it

-- How much older than the buffer's version a record may be; nil: as old as it likes.
function age.limit()
  return tonumber(settings.max_staleness or '')
end

function age.is_kept()
  return settings.sampler == 'Freshest()' or settings.remover == 'Freshest()' or age.limit() ~= nil
end

function age.is_sound()
  return not settings.max_staleness or settings.max_staleness == 'None' or settings.max_staleness:find('^%d+$') ~= nil
end

function age.name(index)
  return string.format('%016.0f', index)
end

-- The version of each; false where it is not stored.
function age.of(indices)
  local names, out = {}, {}
  for i, index in ipairs(indices) do names[i] = age.name(index) end
  for i, score in ipairs(ask_many('ZMSCORE', versions, names)) do
    local version = tonumber(score or '')
    out[i] = version and (version < 0 and -1 - version or version) or false
  end
  return out
end

-- The same as a text.
function age.told(indices)
  if not age.is_kept() then return '' end
  local out = {}
  for i, version in ipairs(age.of(indices)) do out[i] = int(version or -1) end
  return table.concat(out, ' ')
end

local function move(indices, where)
  if not age.is_kept() then return end
  for _, index in ipairs(indices) do moves[index] = where end
end

-- May be drawn (again), may not any more.
function age.come(indices)
  move(indices, IN)
end

function age.leave(indices)
  move(indices, OUT)
end

-- Their bytes go.
function age.forget(indices)
  move(indices, GONE)
  if count('unseen') > 0 then bump('unseen', -call_many('HDEL', authors, indices)) end
end

-- New ones. `origin`: "<writer> <version>…", a version for each, or one for all, or none: that of the buffer.
function age.enter(indices, origin)
  local words, members, author = split(origin), {}, {}
  local writer = table.remove(words, 1)
  local number = writer and share.number(writer) or share.OTHERS
  words[1] = words[1] or int(count('version'))
  for i, index in ipairs(indices) do
    members[2 * i - 1], members[2 * i] = words[i] or words[1], age.name(index)
    author[2 * i - 1], author[2 * i] = index, number
  end
  call_many('ZADD', versions, members)
  bump('unseen', call_many('HSET', authors, author))
  share.count(number, 'written', #indices)
end

-- Somebody is given these.
function age.give(indices)
  if count('unseen') > 0 then bump('unseen', -call_many('HDEL', authors, indices)) end
end

-- These leave, `how`: stale or evicted. Counts those that nobody was given, for their writers.
function age.lose(indices, how)
  if count('unseen') == 0 then return end
  local of = {}
  for _, number in ipairs(ask_many('HMGET', authors, indices)) do
    if number then of[number] = (of[number] or 0) + 1 end
  end
  for number, n in pairs(of) do share.count(number, how, n) end
end

function age.write()
  local there, gone, members = {}, {}, {}
  for index, where in pairs(moves) do
    if where == GONE then gone[#gone + 1] = age.name(index) else there[#there + 1] = index end
  end
  for i, version in ipairs(age.of(there)) do
    if version then
      members[#members + 1] = int(moves[there[i]] == IN and version or -1 - version)
      members[#members + 1] = age.name(there[i])
    end
  end
  call_many('ZADD', versions, members)
  call_many('ZREM', versions, gone)
  moves = {}
end
