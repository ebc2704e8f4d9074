-- doctor: what the invariants are judged by, all at one moment. Reads only.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- Returns  each after a -
--   OK name value…                    counters; xlen, last_id, and the size of each side key
--   DAMAGED key found expected        the settings or the counters are missing
--   GONE                              another epoch
-- @include missing
-- @include seat
local there = redis.call('HGET', config, 'epoch')
if there ~= ARGV[1] then return not there and missing_config() or {'GONE', '-'} end
if redis.call('EXISTS', counters) == 0 then return missing(counters, 'the hash of counters') end
local out = redis.call('HGETALL', counters)
table.insert(out, 1, 'OK')
table.insert(out, 2, '-')
local function fact(name, value)
  out[#out + 1], out[#out + 2] = name, value
end
local stream = redis.call('EXISTS', records) == 1 and redis.call('XINFO', 'STREAM', records) or {}
for i = 1, #stream, 2 do
  if stream[i] == 'last-generated-id' then fact('last_id', stream[i + 1]) end
end
fact('xlen', redis.call('XLEN', records))
fact('inbox', redis.call('EXISTS', inbox))
fact('order', redis.call('ZCARD', order))
fact('holes', redis.call('ZCOUNT', holes, tonumber(redis.call('HGET', counters, 'first') or '') or '-inf', '+inf'))
fact('priorities', redis.call('HLEN', priorities))
fact('places', redis.call('HLEN', places))
fact('ranked', redis.call('ZCARD', ranked))
local weighed, blocks, lines, found = 0, 0, 0, redis.call('HGETALL', buckets)
for i = 2, #found, 2 do
  local n, live = found[i]:match('^(%d+) %S+ (%d+)$')
  weighed, blocks = weighed + (live or 0), blocks + (n or found[i]:match('^%d+$') or 0)
  lines = lines + math.ceil((n or 0) / seat.CHUNK)
end
fact('weighed', weighed)
fact('blocks', blocks)
fact('rows', lines)
fact('versions', redis.call('ZCARD', versions))
fact('dated', redis.call('ZCOUNT', versions, 0, '+inf'))
fact('authors_size', redis.call('HLEN', authors))
fact('skipped', redis.call('HGET', config, 'skipped') or '')
fact('parting_size', redis.call('SCARD', parting))
fact('uses_size', redis.call('HLEN', uses))
fact('held', redis.call('HLEN', held))
fact('kept', redis.call('ZCARD', kept))
fact('leases', redis.call('ZCARD', leases))
fact('leased_size', redis.call('HLEN', leased))
fact('holds', redis.call('ZCARD', holds))
fact('lanes', redis.call('ZCARD', lanes))
fact('requests', redis.call('HLEN', requests))
fact('waiters', redis.call('ZCARD', waiters))
fact('waiting', redis.call('HLEN', waiting))
fact('capacity', redis.call('HGET', config, 'capacity') or '')
fact('consume_after_n_samples', redis.call('HGET', config, 'consume_after_n_samples') or '')
return out
