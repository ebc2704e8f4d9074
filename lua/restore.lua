-- restore: records at given indices, into the copy that stage.lua began.
-- KEYS     the list of include/keys.lua, of the copy
-- ARGV[1]  epoch         text   of the copy: the name of this load
-- ARGV[2]  ttl_ms        int    after which it goes by itself, unless something more of it comes
-- ARGV[3]  index         text   of each record, rising, with spaces between; what lies between them was taken out
-- ARGV[4]  uses          text   times handed out, of each, or empty: they are not counted
-- ARGV[5]  priority      text   of each, or empty: there are none
-- ARGV[6]  version       text   of each, or empty: there are none
-- ARGV[7]  writer        text   its number in `shares`, of each, - where it was handed out before; or empty
-- ARGV[8]  upto          int    behind the records, indices up to this one hold nothing; or 0
-- ARGV[9]  skipped       0|1    and were never given
-- ARGV[10..]  payload    bytes  of each record
-- Returns  each after a -
--   OK                                they are in
--   DAMAGED key found expected        the copy is not what it must be
--   GONE                              it is there no more
-- Writes   every key of the copy
-- @include write
local ttl_ms, upto = tonumber(ARGV[2]), tonumber(ARGV[8])
local refused = enter(epoch)
if refused then return refused end
local new = split(ARGV[3])
local newest = math.max(upto, tonumber(new[#new] or 0))
if newest > 0 and newest <= count('last') then return {'OK', '-'} end -- sent again

-- Indices before `index` that hold nothing.
local function pass(index)
  if has_order() then set_count('last', index - 1) else leave_gap(index - 1) end
end

local function add_words(command, key, text, name)
  local members = {}
  for i, word in ipairs(split(text)) do
    if word ~= '-' then members[#members + 1], members[#members + 2] = name(word, new[i]) end
  end
  return call_many(command, key, members)
end

local function field(word, index)
  return index, word
end

local function take_out_new(indices)
  local members = {}
  for i, index in ipairs(indices) do members[2 * i - 1], members[2 * i] = index, index end
  call_many('ZADD', holes, members)
end

local gap = {}
for i, index in ipairs(new) do
  if not has_order() then
    for x = count('last') + 1, tonumber(index) - 1 do gap[#gap + 1] = int(x) end
  end
  redis.call('XADD', records, '0-' .. index, 'd', ARGV[9 + i])
  set_count('last', tonumber(index))
end
if has_order() then add_words('ZADD', order, ARGV[3], field) else take_out_new(gap) end
bump('storage_size', #new)
bump('used', add_words('HSET', uses, ARGV[4], field))
add_words('ZADD', versions, ARGV[6], function(word, index) return word, age.name(index) end)
bump('unseen', add_words('HSET', authors, ARGV[7], field))
local each = split(ARGV[5])
for i, p in ipairs(each) do each[i] = tonumber(p) end
count_in(new, each)
if upto > count('last') and ARGV[9] == '1' then skip_to(upto) elseif upto > count('last') then pass(upto + 1) end
commit()
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl_ms) end
return {'OK', '-'}
