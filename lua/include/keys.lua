-- keys: the names of KEYS, the same list in the same order for every script (redis_replay/_keys.py makes it).
-- KEYS[1]   rr:{NAME}:config    hash    settings, format, epoch, schema, state, number of shutdowns
-- KEYS[2]   rr:{NAME}:counters  hash    every counter, exact integers; the clock
-- KEYS[3]   rr:{NAME}:records   stream  0-<index> -> d = the record's bytes
-- KEYS[4]   rr:{NAME}:inbox     stream  `records` while large records go in, inside one MULTI only
-- KEYS[5]   rr:{NAME}:order     zset    the live indices, in a buffer that consumes, or whose remover is not Fifo
-- KEYS[6]   rr:{NAME}:holes     zset    indices taken out between `first` and `last`, in any other
-- KEYS[7]   rr:{NAME}:uses      hash    index -> times handed out, where consume_after_n_samples > 1
-- KEYS[8]   rr:{NAME}:parting   set     indices out of the buffer whose bytes are kept for who was given them
-- KEYS[9]   rr:{NAME}:held      hash    index -> number of holds on it
-- KEYS[10]  rr:{NAME}:holds     zset    lane -> end of its hold, in microseconds
-- KEYS[11]  rr:{NAME}:leases    zset    lease -> its end, in microseconds
-- KEYS[12]  rr:{NAME}:leased    hash    lease -> its length in microseconds, and the indices it holds
-- KEYS[13]  rr:{NAME}:priorities hash  8 indices -> what each weighs, and its priority; see block.lua
-- KEYS[14]  rr:{NAME}:places    hash   the bins' blocks of 8 indices, in rows; see seat.lua
-- KEYS[15]  rr:{NAME}:buckets   hash   bin -> blocks, the sum of their weights, records; see bucket.lua
-- KEYS[16]  rr:{NAME}:ranked    zset   index -> priority, where the least or the largest is asked for
-- KEYS[17]  rr:{NAME}:versions  zset    index -> version, where max_staleness or the sampler Freshest is set; see age.lua
-- KEYS[18]  rr:{NAME}:authors   hash    index -> its writer, of those that were never handed out; see age.lua
-- KEYS[19]  rr:{NAME}:shares    hash    what each writer wrote, and what of it was never handed out; see shares.lua
-- KEYS[20]  rr:{NAME}:noted     hash    index -> what the record was when a dump began, of those that changed since; see cut.lua
-- KEYS[21]  rr:{NAME}:kept      zset    indices out of the buffer whose bytes a dump has still to read
-- KEYS[22]  rr:{NAME}:lanes     zset    lane -> time of its last request, in microseconds
-- KEYS[23]  rr:{NAME}:requests  hash    lane -> its last number, and the answer to it
-- KEYS[24]  rr:{NAME}:writers   zset    lane -> time of its last write, in microseconds
-- KEYS[25]  rr:{NAME}:waiters   zset    lane -> its place in the line
-- KEYS[26]  rr:{NAME}:waiting   hash    lane -> what it waits for
-- KEYS[27]  rr:{NAME}:none      none    a key that is never there
-- KEYS[28]  rr:{NAME}:events    channel state changes: open, draining, shut, deleted
local config, counters, records, inbox = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local order, holes, uses, parting = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local held, holds, leases, leased = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local priorities, places, buckets, ranked = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local versions, authors, shares = KEYS[17], KEYS[18], KEYS[19]
local noted, kept = KEYS[20], KEYS[21]
local lanes, requests, writers, waiters = KEYS[22], KEYS[23], KEYS[24], KEYS[25]
local waiting, none, events = KEYS[26], KEYS[27], KEYS[28]
