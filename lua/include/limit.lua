-- limit: the rate limiter, by Reverb's two-sided rule (its RateLimiter: CanSample, CanInsert); a batch is judged as a whole.
-- @include book
-- `law` in `config`: "p q min_size min_diff max_diff start leaves", or empty: there is no limiter. A write of n records
-- raises the counter `diff` by n * p, a draw of n samples lowers it by n * q; p / q is samples_per_insert, and both are 0
-- where only the size counts. All are whole numbers, so that nothing is rounded. start: the most that records which are
-- there already count for; leaves: 1 where what goes without having been drawn counts no more.
local limit = {}
local UNLIMITED, MOST_DIFF = 9007199254740991, 4503599627370496 -- 2^53 - 1; 2^52

-- Whether a text is a law that a script can go by.
function limit.parse(text)
  local p, q, min_size, low, high, start, leaves = (text or ''):match('^(%d+) (%d+) (%d+) (-?%d+) (-?%d+) (-?%d+) ([01])$')
  if not p then return nil end
  local law = {p = tonumber(p), q = tonumber(q), min_size = tonumber(min_size), low = tonumber(low), high = tonumber(high),
               start = tonumber(start), leaves = leaves == '1'}
  for _, number in pairs(law) do
    if type(number) == 'number' and math.abs(number) > MOST_DIFF then return nil end
  end
  return law
end

function limit.is_sound()
  if (settings.law or '') == '' then return true end
  limit.law = limit.law or limit.parse(settings.law)
  return limit.law ~= nil
end

-- Whether draws and writes use up what others wait for.
function limit.is_spent()
  return limit.law ~= nil and limit.law.p > 0
end

local function raise(by)
  if not limit.is_spent() then return end
  set_count('diff', math.max(-MOST_DIFF, math.min(MOST_DIFF, count('diff') + by)))
end

function limit.inserted(n)
  if limit.law then raise(n * limit.law.p) end
end

-- n < 0: a batch that was lent comes back.
function limit.sampled(n)
  if limit.law then raise(-n * limit.law.q) end
end

-- A draw of n is undone, of which so many come back into a buffer that consumes. `era`: the word of its answer that ends
-- with the era; in another one nobody owes anything, but what comes back into a queue is there.
function limit.undone(n, back, era)
  if limit.is_unread() then
    limit.sampled(-back)
  elseif tonumber(era:match('^[l-](%d+)$')) == count('era') then
    limit.sampled(-n)
  end
end

-- Whether the difference is just what is there and was not drawn: of a queue.
function limit.is_unread()
  return limit.law ~= nil and limit.law.leaves and settings.consume == 1
end

-- n live records go without having been drawn.
function limit.left(n)
  if limit.is_unread() then raise(-n * limit.law.p) end
end

-- A new era: as if the buffer had come to what it holds by itself. Nobody owes anything.
function limit.begin()
  local law = limit.law
  bump('era', 1)
  local there = count('sampleable_size')
  local most = limit.is_unread() and there or law and law.start or 0
  set_count('diff', law and math.min(most, there * law.p) or 0)
end

-- How many records may be drawn, of so many that are there.
function limit.samples(there, owed)
  local law = limit.law
  if not law or settings.state == 'draining' then return there end
  if there < law.min_size then return 0 end
  if law.q == 0 then return there end
  return math.min(there, math.floor((count('diff') - law.low) / law.q) - owed)
end

-- How many samples may be drawn with replacement.
function limit.repeats(owed)
  if not limit.is_spent() or settings.state == 'draining' then return UNLIMITED end
  return math.floor((count('diff') - limit.law.low) / limit.law.q) - owed
end

-- How many records may be written. `hunger`: what a reader that waits needs to be there: as long as it is not, it could not
-- make room however far the draws are behind, and both sides would wait for ever.
function limit.inserts(owed, hunger)
  if not limit.is_spent() then return UNLIMITED end
  local law = limit.law
  if hunger > 0 and count('sampleable_size') + owed < math.max(hunger, law.min_size) then return UNLIMITED end
  local room = math.max(law.min_size - count('sampleable_size'), math.floor((law.high - count('diff')) / law.p)) - owed
  if not limit.is_unread() then return room end
  return math.min(room, settings.capacity - count('leased') - count('sampleable_size') - owed) -- what is lent may come back
end

-- What is told of it: one word.
function limit.word()
  return limit.law and settings.law:gsub(' ', ',') .. ',' .. int(count('diff')) or '-'
end
