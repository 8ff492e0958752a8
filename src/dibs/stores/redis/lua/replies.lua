-- model.py's replies and commands, as they travel: a letter, then a struct. (Wakeups are in pushes.lua.)

local Reply = {GONE = 'g', RELEASED = 'r', UNKNOWN = 'u'}

function Reply.granted(token, slots, ttl)
  return struct.pack('<c1dd', 'G', token, ttl) .. slots
end

function Reply.queued(position, recheck_in, now)
  return struct.pack('<c1ddd', 'Q', position, recheck_in, now)
end

function Reply.refused(reason, holders, recheck_in)
  holders = holders or {}
  return struct.pack('<c1dIc0I', 'R', recheck_in or 0, #reason, reason, #holders)
    .. table.concat(holders)
end

function Reply.renewed(ttl)
  return struct.pack('<c1d', 'N', ttl)
end

function Reply.lost(reason, detail)
  reason, detail = reason or 'expired', detail or ''
  return struct.pack('<c1Ic0Ic0', 'L', #reason, reason, #detail, detail)
end

function Reply.revoked(count, ends_in)
  return struct.pack('<c1dd', 'V', count, ends_in)
end

function Reply.status(book, holders, waiters)
  return struct.pack('<c1dddddII', 'S',
      book.capacity, book.place, book.last, book:holding(), book.used, #holders, #waiters)
    .. table.concat(holders) .. table.concat(waiters)
end

function Reply.failed(reason, detail)
  return struct.pack('<c1Ic0Ic0', 'F', #reason, reason, #detail, detail)
end

local Command = {}

function Command.A(raw)
  local units, capacity, priority, floor, ttl, patience, lock_delay, wants_queue,
    id, lease, owner, note, inbox, address, trace =
    struct.unpack(ACQUIRE, raw, 2)
  return {
    id = id, lease = lease, owner = owner, note = note, inbox = inbox, address = address,
    trace = trace, units = units, capacity = capacity, priority = priority, floor = floor, ttl = ttl,
    patience = patience, lock_delay = lock_delay, queue = wants_queue == 1,
  }
end

-- The same, where it asks for nothing unusual.
function Command.a(raw)
  local wants_queue, ttl, patience = struct.unpack(PLAIN, raw, 2)
  local id, lease, owner, note, inbox, address, trace = struct.unpack(TEXTS, raw, 23)
  return {
    id = id, lease = lease, owner = owner, note = note, inbox = inbox, address = address,
    trace = trace, units = 1, capacity = 1, priority = 0, floor = 0, ttl = ttl, patience = patience, lock_delay = 0,
    queue = wants_queue == 1,
  }
end

function Command.N(raw)
  local ttl, id, inbox = struct.unpack(RENEW, raw, 2)
  return {id = id, ttl = ttl, inbox = inbox}
end

function Command.X(raw)
  local keep, bury, id = struct.unpack(RELEASE, raw, 2)
  return {id = id, keep = keep, bury = bury}
end

function Command.x(raw)
  local id = struct.unpack('<Ic0', raw, 2)
  return {id = id, keep = 0, bury = 0}
end

function Command.Z(raw)
  local units, seq, id = struct.unpack('<ddIc0', raw, 2)
  return {id = id, units = units, seq = seq}
end

function Command.I()
  return {}
end

function Command.V(raw)
  local at_once, has_lease, lease, reason = struct.unpack('<BBIc0Ic0', raw, 2)
  return {now = at_once == 1, lease = has_lease == 1 and lease or nil, reason = reason}
end

-- What no struct can hold, with what is wrong with it.
function Command.F(raw)
  return {flaw = string.sub(raw, 2)}
end
