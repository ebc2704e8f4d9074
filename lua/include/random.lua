-- random: MRG32k3a (L'Ecuyer 1999), six 32-bit seeds from the client. Its products stay below 2^53, so doubles give the
-- same digits on every server.
local M1, M2 = 4294967087, 4294944443
local seeds = {}

local function seed_from(list, low)
  for i = 1, 6 do seeds[i] = tonumber(list[low + i - 1]) end
end

-- A whole number from 0 to M1 - 1.
local function next_random()
  local a = (1403580 * seeds[2] - 810728 * seeds[1]) % M1
  local b = (527612 * seeds[6] - 1370589 * seeds[4]) % M2
  seeds[1], seeds[2], seeds[3] = seeds[2], seeds[3], a
  seeds[4], seeds[5], seeds[6] = seeds[5], seeds[6], b
  return (a - b) % M1
end

-- A whole number from 0 to n - 1, each exactly as likely: what would favour the first ones is drawn again.
local function random_below(n)
  local top = M1 - M1 % n
  local x = next_random()
  while x >= top do x = next_random() end
  return x % n
end

-- Many of them.
local function random_many_below(many, n)
  local a1, a2, a3, b1, b2, b3 = unpack(seeds)
  local out, top, at = {}, M1 - M1 % n, 0
  while at < many do
    local a = (1403580 * a2 - 810728 * a1) % M1
    local b = (527612 * b3 - 1370589 * b1) % M2
    a1, a2, a3, b1, b2, b3 = a2, a3, a, b2, b3, b
    local x = (a - b) % M1
    if x < top then at, out[at + 1] = at + 1, x % n end
  end
  seeds = {a1, a2, a3, b1, b2, b3}
  return out
end

-- n numbers from 0 to 1, not 1 itself, each of two whole ones.
local function random_parts(n)
  local a1, a2, a3, b1, b2, b3 = unpack(seeds)
  local out, high = {}, nil
  for i = 1, 2 * n do
    local a = (1403580 * a2 - 810728 * a1) % M1
    local b = (527612 * b3 - 1370589 * b1) % M2
    a1, a2, a3, b1, b2, b3 = a2, a3, a, b2, b3, b
    if i % 2 == 1 then high = (a - b) % M1 else out[i / 2] = (high + (a - b) % M1 / M1) / M1 end
  end
  seeds = {a1, a2, a3, b1, b2, b3}
  return out
end
