-- missing: what is said of a key that somebody deleted, or took something out of, by hand.
-- @include keys
-- @include chunks

local function missing(key, what)
  return {'DAMAGED', '-', key, 'is missing', what}
end

-- A buffer that was deleted has no key at all.
local function missing_config()
  return redis.call('EXISTS', counters, records) > 0 and missing(config, 'the hash of settings') or nil
end

local function wrong_size(key, found, expected)
  return {'DAMAGED', '-', key, 'has ' .. int(found) .. ' entries', int(expected)}
end
