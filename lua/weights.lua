-- weights: a page of the blocks of priorities. Reads only.
-- KEYS     the list of include/keys.lua
-- ARGV[1]  epoch         text   of the buffer, when the caller opened it
-- ARGV[2]  cursor        text   0 to begin, then what the last page gave
-- Returns  each after a -
--   OK cursor number block…           cursor: 0 at the end; two for each block: see include/block.lua
--   GONE                              another epoch
-- @include keys
if redis.call('HGET', config, 'epoch') ~= ARGV[1] then return {'GONE', '-'} end
local page = redis.call('HSCAN', priorities, ARGV[2], 'COUNT', 200)
local out = {'OK', '-', page[1]}
for _, text in ipairs(page[2]) do out[#out + 1] = text end
return out
