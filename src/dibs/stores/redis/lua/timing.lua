-- core/timing.py: how durations of the protocol follow from a ttl. (`next_token` is in forms.lua.)

local WINDOW = 5 -- how long a pushed grant stands unclaimed, at most
local FRONT = 16 -- so many waiters send a heartbeat every third of a claim timeout
local SIGHT = 64 -- so many are looked at; if all are passed over, whoever asks next is granted
local POSITIONS = 1000 -- waiters ahead are counted up to this number
local STEPS = 64 -- so many entries are ended and waiters granted or refused by a command; later ones do the rest
local FEW_STEPS, BATCH_STEPS = 4, 256 -- so many once the commands of a batch have used up so many
local BURIAL = 60 -- how long an ended id is remembered, at least

local MANY = 1048576 -- model.py: the largest capacity
local MAX_HOLDERS = 10000 -- model.py: how many leases a key may have
local MAX_SLOTS = 1024 -- model.py: the largest capacity whose units are numbered

local function claim_window(ttl)
  return math.min(WINDOW, math.max(ttl / 2, math.min(ttl, 0.5)))
end

local function sign_of_life_after(window)
  return window / 3
end

-- core/proof.py, by SHA-1.
local function proof_of(key, id, token, slots, granted_at, window)
  local numbers = {}
  for at = 1, #slots, 4 do
    numbers[#numbers + 1] = struct.unpack('<I', slots, at)
  end
  local name = string.sub(key, 7, -2) -- of dibs:{name}, escaped as in script_keys.py
  name = name == '%' and '' or string.gsub(string.gsub(name, '%%7D', '}'), '%%25', '%%')
  return redis.sha1hex(struct.pack('>dddd', token, granted_at, window, #name) .. name
    .. table.concat(numbers, ',') .. id)
end
