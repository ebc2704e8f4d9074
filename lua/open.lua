-- open: creates the buffer, or compares the settings that the caller names with those it has, in one step.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   for the buffer, if it is created
-- ARGV[2]  format        text   number of the stored format
-- ARGV[3]  mode          text   create (if it is not there), attach (it must be there), fresh (delete it first)
-- ARGV[4..]  option      text   three for each setting: name, value, 1 where the caller named it
-- Returns  each after a -
--   OK name value…                    the whole config
--   NOT_FOUND                         nobody has created it (mode attach)
--   MISMATCH name stored given…       settings that differ
--   FORMAT found                      stored by another version; none if it has no format number
--   DAMAGED key found expected        a key has another type, or is there without a config
-- Writes   config, counters, records
-- Publishes  open to events; in mode fresh what delete publishes
-- @include erase
-- @include process
-- @include create
local epoch, format, mode = ARGV[1], ARGV[2], ARGV[3]
-- In the order of KEYS; two of these are not ours.
local TYPES = {'hash', 'hash', 'stream', 'stream', 'zset', 'zset', 'hash', 'set', 'hash', 'zset', 'zset', 'hash', 'hash',
  'hash', 'hash', 'zset', 'zset', 'hash', 'hash', 'hash', 'zset', 'zset', 'hash', 'zset', 'zset', 'hash'}

local function damage(there)
  for i, key in ipairs(KEYS) do
    local found, kind = redis.call('TYPE', key).ok, TYPES[i]
    local expected = kind and 'a ' .. kind or 'no key'
    if found ~= 'none' and found ~= kind then return {'DAMAGED', '-', key, 'is a ' .. found, expected} end
    if found ~= 'none' and not there then return {'DAMAGED', '-', key, 'is there without a config', 'no key'} end
  end
end

local function create_it()
  local fields = {'epoch', epoch, 'format', format, 'state', 'open', 'drained', '0', 'shutdowns', '0', 'record_bytes', '0'}
  for i = 4, #ARGV, 3 do
    fields[#fields + 1], fields[#fields + 2] = ARGV[i], ARGV[i + 1]
  end
  create(fields, 1)
  local run = this_process()
  if run then redis.call('HSET', config, 'server', run) end
  redis.call('PUBLISH', events, 'open')
end

local function differences()
  local found = redis.call('HGET', config, 'format')
  if found ~= format then return {'FORMAT', '-', found or 'none'} end
  local out = {'MISMATCH', '-'}
  for i = 4, #ARGV, 3 do
    local stored = redis.call('HGET', config, ARGV[i])
    if ARGV[i + 2] == '1' and stored ~= ARGV[i + 1] then
      out[#out + 1], out[#out + 2], out[#out + 3] = ARGV[i], stored or 'None', ARGV[i + 1]
    end
  end
  return #out > 2 and out or nil
end

if mode == 'fresh' and redis.call('TYPE', config).ok ~= 'hash' and redis.call('EXISTS', unpack(KEYS)) > 0 then erase() end
if mode == 'fresh' and (redis.call('HGET', config, 'epoch') or epoch) ~= epoch then erase() end -- sent again, it is there already
local there = redis.call('EXISTS', config) == 1
local wrong = damage(there)
if wrong then return wrong end
if not there and mode == 'attach' then return {'NOT_FOUND', '-'} end
if not there then create_it() end
local differ = there and differences()
if differ then return differ end
local out = redis.call('HGETALL', config)
table.insert(out, 1, 'OK')
table.insert(out, 2, '-')
return out
