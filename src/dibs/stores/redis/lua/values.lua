-- Entries of a book as they lie in Redis, and back.
--
-- The Python ledger's entries also have a `beat`, for observers without the store's clock. Nobody
-- observes Redis without its clock. They have a `lease` here, the fingerprint of the id, as Redis has no
-- SHA-256.

local function corrupt(what)
  error({err = what})
end

local HOLD_ROW = '<' .. HOLD
local TOMB_ROW = '<ddIc0Ic0Ic0'

local Read = {}

function Read.hold(raw, at)
  local token, units, ttl, expires, seq, lock_delay, bury, since,
    id, lease, owner, note, inbox, address, trace, state, slots, detail, after =
    struct.unpack(HOLD_ROW, raw, at)
  return {
    kind = 'hold', id = id, lease = lease, owner = owner, token = token, units = units,
    slots = slots, ttl = ttl, expires = expires, state = state, seq = seq,
    lock_delay = lock_delay, bury = bury, since = since, note = note, detail = detail,
    inbox = inbox, address = address, trace = trace,
  }, after
end

local Write = {}

function Write.hold(hold)
  return struct.pack(HOLD_ROW,
    hold.token, hold.units, hold.ttl, hold.expires, hold.seq, hold.lock_delay, hold.bury,
    hold.since, #hold.id, hold.id, #hold.lease, hold.lease, #hold.owner, hold.owner,
    #hold.note, hold.note, #hold.inbox, hold.inbox, #hold.address, hold.address,
    #hold.trace, hold.trace, #hold.state, hold.state,
    #hold.slots, hold.slots, #hold.detail, hold.detail)
end

function Read.place(raw)
  local units, priority, arrival, grant_ttl, ttl, expires, floor, lock_delay, since,
    silence, seen, id, lease, owner, note, inbox, address, trace, after = struct.unpack(PLACE_ROW, raw)
  return {
    kind = 'place', id = id, lease = lease, owner = owner, units = units, priority = priority,
    arrival = arrival, grant_ttl = grant_ttl, ttl = ttl, expires = expires,
    silence = silence, seen = seen, floor = floor, lock_delay = lock_delay, since = since,
    note = note, inbox = inbox, address = address, trace = trace,
  }, after
end

function Write.place(place)
  return struct.pack(PLACE_ROW,
    place.units, place.priority, place.arrival, place.grant_ttl, place.ttl, place.expires,
    place.floor, place.lock_delay, place.since, place.silence, place.seen,
    #place.id, place.id, #place.lease, place.lease, #place.owner, place.owner,
    #place.note, place.note, #place.inbox, place.inbox, #place.address, place.address,
    #place.trace, place.trace)
end

function Read.tomb(raw)
  local ttl, expires, reason, id, detail, after = struct.unpack(TOMB_ROW, raw)
  return {
    kind = 'tomb', id = id, ttl = ttl, expires = expires, reason = reason, detail = detail,
  }, after
end

function Write.tomb(tomb)
  return struct.pack(TOMB_ROW, tomb.ttl, tomb.expires, #tomb.reason, tomb.reason,
    #tomb.id, tomb.id, #tomb.detail, tomb.detail)
end

local function entry_of(kind, id, raw)
  if not raw then
    corrupt('an entry is missing')
  end
  local entry, after = Read[kind](raw, 1)
  if after ~= #raw + 1 or entry.id ~= id then
    corrupt('an entry is not what its id says')
  end
  return entry
end

-- Slots are four bytes each.

local Slots = {}

function Slots.read(text)
  local slots = {}
  for at = 1, #text, 4 do
    slots[#slots + 1] = struct.unpack('<I', text, at)
  end
  return slots
end

function Slots.write(slots)
  local texts = {}
  for i, slot in ipairs(slots) do
    texts[i] = struct.pack('<I', slot)
  end
  return table.concat(texts)
end
