-- book: the settings and counters that a script has read, and what it changes.
-- @include keys
-- @include chunks
-- @include missing
local settings, loaded, deltas = {}, {}, {}
local SETTINGS = {'epoch', 'state', 'capacity', 'sampler', 'remover', 'consume_after_n_samples', 'shutdowns', 'drained',
  'schema_hash', 'record_bytes', 'skipped', 'law', 'max_staleness', 'incoming', 'cut', 'fenced'}
local COUNTERS = {'first', 'last', 'sampleable_size', 'storage_size', 'hidden', 'leased', 'parting', 'used', 'diff',
  'era', 'clock', 'clock_offset', 'last_write', 'version', 'unseen', 'write_count', 'records_total', 'bytes_total',
  'consumed', 'evicted', 'removed', 'stale', 'sample_calls', 'samples_returned', 'lapsed', 'reclaimed', 'late', 'notices',
  'foreign'}
local MAX_COUNT = '9223372036854775807' -- 2^63 - 1: what HINCRBY can hold
local TOTALS = 15 -- COUNTERS behind this one may pass 2^53: their text is kept in `settings`, and never their value

-- Whether records leave anywhere, and not at the old end alone: then `order` holds the live and the hidden indices (live.lua).
local function has_order()
  return settings.consume ~= nil or settings.remover ~= 'Fifo()'
end

-- The value that a counter has now; only those of COUNTERS that stay below 2^53.
local function count(name)
  return loaded[name] + (deltas[name] or 0)
end

local function bump(name, n)
  deltas[name] = (deltas[name] or 0) + n
end

local function set_count(name, value)
  bump(name, value - count(name))
end
