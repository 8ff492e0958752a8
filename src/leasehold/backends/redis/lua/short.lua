-- The short way: a mutex that nobody else wants is granted, renewed and released here, without a book and
-- without the definitions of the long way, which would cost a lone command more than all the rest. It
-- answers what `ledger.lua` would, or nothing: then that is asked.

local IDLE = #EMPTY
local INNER_ROW = ROW .. HOLD

local Short = {}

-- The plainest wish, for a key that is idle.
function Short.A(raw, key, row, now, stamp, expires)
  local units, capacity, priority, tokens, floor, ttl, patience, lock_delay, _,
    id, lease, owner, note, inbox = struct.unpack(ACQUIRE, raw, 2)
  local is_plain = units == 1 and capacity == 1 and priority == 0 and tokens == 1 and floor == 0
    and lock_delay == 0 and ttl > 0 and ttl < INFINITY and patience > 0 and patience < INFINITY
  if not is_plain or #row ~= IDLE then
    return nil
  end
  local magic, format, parts, last, _, arrivals = struct.unpack(ROW, row)
  local token = next_token(last, stamp, 0)
  if magic ~= 'LH' or format ~= FORMAT or parts ~= 0 or token >= LAST_TOKEN then
    return nil
  end
  row = struct.pack(INNER_ROW, 'LH', FORMAT, INNER, token, 1, arrivals,
    token, 1, ttl, now + ttl, 0, 0, 0, stamp, 4, 'held', #id, id, #lease, lease,
    #owner, owner, 4, SLOT_0, #note, note, 0, '', #inbox, inbox)
  write_row(key, row, expires and keep_for(ttl))
  return struct.pack(GRANTED, 'G', token, ttl) .. SLOT_0, row
end

-- A sign of life of the holder.
function Short.N(raw, key, row, now, _, expires)
  local wish, id, new_inbox = struct.unpack(RENEW, raw, 2)
  if #row == IDLE or string.byte(row, 4) ~= INNER then
    return nil
  end
  local magic, format, parts, last, capacity, arrivals,
    token, units, ttl, expiry, seq, lock_delay, bury, since, state,
    inner, lease, owner, slots, note, detail, inbox, after = struct.unpack(INNER_ROW, row)
  if magic ~= 'LH' or format ~= FORMAT or after ~= #row + 1 or inner ~= id or state ~= 'held'
    or now >= expiry or not (wish > 0 and wish < INFINITY)
    or new_inbox ~= '' and new_inbox ~= inbox then
    return nil
  end
  local left = math.max(wish, math.min(expiry - now, ttl))
  row = struct.pack(INNER_ROW, magic, format, parts, last, capacity, arrivals,
    token, units, left, now + left, seq, lock_delay, bury, since, #state, state,
    #inner, inner, #lease, lease, #owner, owner, #slots, slots, #note, note, #detail, detail,
    #inbox, inbox)
  write_row(key, row, expires and keep_for(left + lock_delay))
  return struct.pack(RENEWED, 'N', left), row
end

-- The holder leaves, and there is nothing to keep or to remember.
function Short.X(raw, key, row, now, stamp, expires)
  local keep, bury, id = struct.unpack(RELEASE, raw, 2)
  if keep ~= 0 or bury ~= 0 or #row == IDLE or string.byte(row, 4) ~= INNER then
    return nil
  end
  local magic, format, _, last, capacity, arrivals, _, _, _, expiry, _, _, _, _, state,
    inner, _, _, _, _, _, _, after = struct.unpack(INNER_ROW, row)
  if magic ~= 'LH' or format ~= FORMAT or after ~= #row + 1 or inner ~= id or state == 'kept'
    or now >= expiry then
    return nil
  end
  row = struct.pack(ROW, 'LH', FORMAT, 0, last, capacity, arrivals)
  write_row(key, row, expires and keep_idle_for(last, stamp))
  return RELEASED, row
end
