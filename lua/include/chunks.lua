-- chunks: long lists in pieces. unpack() into a redis.call takes at most 7,999 values on servers and 7,995 on fakeredis.
local CHUNK = 7000 -- even, so that pairs stay together

local string_format = string.format

local function int(x)
  return string_format('%d', x)
end

local function split(text)
  local out = {}
  for word in text:gmatch('%S+') do out[#out + 1] = word end
  return out
end

-- Sum of the integer replies of `command key list…`.
local function call_many(command, key, list)
  local sum = 0
  for low = 1, #list, CHUNK do
    sum = sum + redis.call(command, key, unpack(list, low, math.min(low + CHUNK - 1, #list)))
  end
  return sum
end

-- The list replies of `command key list…`, one after another.
local function ask_many(command, key, list)
  local out = {}
  for low = 1, #list, CHUNK do
    for _, value in ipairs(redis.call(command, key, unpack(list, low, math.min(low + CHUNK - 1, #list)))) do
      out[#out + 1] = value
    end
  end
  return out
end

local function delete_entries(indices)
  local ids = {}
  for i, index in ipairs(indices) do ids[i] = '0-' .. index end
  return call_many('XDEL', records, ids)
end
