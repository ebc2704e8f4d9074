-- create: the keys that every buffer has, of one that holds nothing yet.
-- @include keys
-- @include chunks
local ZERO = {'write_count', 'records_total', 'bytes_total', 'sampleable_size', 'storage_size', 'leased', 'hidden', 'parting',
  'used', 'consumed', 'evicted', 'removed', 'sample_calls', 'samples_returned', 'notices', 'arrivals', 'lapsed',
  'reclaimed', 'late', 'foreign', 'rewound', 'restarts', 'ignored', 'diff', 'era', 'version', 'stale', 'unseen', 'authors',
  'clock', 'clock_offset', 'last_write'}

-- `fields`: names and values of `config`; `first`: the index that is given first.
local function create(fields, first)
  redis.call('HSET', config, unpack(fields))
  redis.call('HSET', counters, 'first', int(first), 'last', int(first - 1))
  for _, name in ipairs(ZERO) do redis.call('HSET', counters, name, 0) end
  redis.call('XGROUP', 'CREATE', records, 'none', '0', 'MKSTREAM') -- an empty stream, without burning an index
  redis.call('XGROUP', 'DESTROY', records, 'none')
end
