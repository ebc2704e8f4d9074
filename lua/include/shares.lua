-- shares: what each writer wrote, and what of it left before anybody was given it: dropped as stale, or evicted.
-- @include book
-- `shares`  a writer's number -> "<name> <written> <stale> <evicted> <time of its last write>", and "=<name>" -> its number
local share, WRITERS = {OTHERS = '0'}, 256 -- rows; above, the most silent one's is added to the others'
local COLUMNS = {'written', 'stale', 'evicted', 'time'}

-- What nobody of ours has written counts as nothing.
local function parse_share(text)
  local row = {}
  row.name, row.written, row.stale, row.evicted, row.time = (text or ''):match('^(%S+) (%d+) (%d+) (%d+) (%d+)$')
  for _, column in ipairs(COLUMNS) do row[column] = tonumber(row[column] or 0) end
  row.name = row.name or '(others)'
  return row
end

local function write_share(number, row)
  redis.call('HSET', shares, number, table.concat(
    {row.name, int(row.written), int(row.stale), int(row.evicted), int(row.time)}, ' '))
end

-- Counts n records of a writer whose number is known. One that has no row any more is one of the others.
function share.count(number, column, n)
  local text = redis.call('HGET', shares, number)
  if not text then number, text = share.OTHERS, redis.call('HGET', shares, share.OTHERS) end
  local row = parse_share(text)
  row[column] = row[column] + n
  if column == 'written' then row.time = count('clock') end
  write_share(number, row)
end

-- Two fields a writer: its row, and its number.
local function merge_most_silent()
  local found, least, silent = redis.call('HGETALL', shares), nil, nil
  for i = 1, #found, 2 do
    local row = parse_share(found[i + 1])
    if found[i]:find('^[1-9]%d*$') and (not least or row.time < least.time) then least, silent = row, found[i] end
  end
  if not least then return end
  redis.call('HDEL', shares, silent, '=' .. least.name)
  for _, column in ipairs({'written', 'stale', 'evicted'}) do share.count(share.OTHERS, column, least[column]) end
end

-- The number of a writer, who has a row from now on.
function share.number(name)
  local number = redis.call('HGET', shares, '=' .. name)
  if number and redis.call('HEXISTS', shares, number) == 1 then return number end
  if redis.call('HLEN', shares) >= 2 * WRITERS then merge_most_silent() end
  number = int(redis.call('HINCRBY', counters, 'authors', 1))
  redis.call('HSET', shares, '=' .. name, number)
  write_share(number, {name = name, written = 0, stale = 0, evicted = 0, time = count('clock')})
  return number
end

-- For stats: the rows as they are stored, the numbers left out.
function share.rows()
  local out, found = {}, redis.call('HGETALL', shares)
  for i = 1, #found, 2 do
    if found[i]:find('^%d+$') then
      local row = parse_share(found[i + 1])
      out[#out + 1] = table.concat({row.name, int(row.written), int(row.stale), int(row.evicted)}, ' ')
    end
  end
  return table.concat(out, ' ')
end
