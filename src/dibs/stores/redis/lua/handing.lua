-- The short way of a mutex from its holder to the head of its queue, which is what others wait for: what
-- `ledger.lua` would do where nothing is unusual, and nothing where anything is.

local AWAITED = 'DI\1\3' -- how the row begins of a key that has one hold inside and others outside
local AWAITED_ROW = '<c4dddddddddd' -- that; last, capacity, arrivals; COUNTS
local HOLD_AT = 85 -- where the hold begins behind that
local TEXTS_AT = 89 -- where a place's texts begin
local UNCLAIMED = '\9\0\0\0unclaimed\4\0\0\0\0\0\0\0\0\0\0\0' -- how the new hold ends, as HELD

-- The hold of a row is of that id, and is not kept by nobody.
local function is_holder(row, own)
  local _, _, _, _, _, _, _, _, id, _, _, _, _, _, _, state, _, _, after =
    struct.unpack('<' .. HOLD, row, HOLD_AT)
  return id == own and state ~= 'kept' and after == #row + 1
end

-- A place that asks for one unit, and is not passed over.
local function ready_place(raw, now, doubt)
  if not raw then
    return nil
  end
  local units, _, _, grant_ttl, ttl, expiry, floor, lock_delay, _, silence, seen =
    struct.unpack(PLACE_ROW, raw)
  local window = claim_window(grant_ttl)
  if units == 1 and now - (expiry - ttl) <= silence and seen >= doubt then
    return {
      texts = string.sub(raw, TEXTS_AT), window = window, floor = floor,
      lock_delay = lock_delay,
    }
  end
end

-- The first of the queue, and the next if there is one, where all is well with both.
local function front_of(key, places, now, doubt)
  local members = redis.call('ZRANGE', key .. 'queue', 0, 1)
  if #members ~= math.min(places, 2) then
    return nil
  end
  local ids = {}
  for i, member in ipairs(members) do
    ids[i] = string.sub(member, 17)
  end
  local raws = redis.call('HMGET', key .. 'place', unpack(ids))
  local first, second = ready_place(raws[1], now, doubt), ready_place(raws[2], now, doubt)
  if first and (second or places == 1) then
    first.member, first.id = members[1], ids[1]
    return first, second
  end
end

local function strike_out(key, place)
  redis.call('HDEL', key .. 'place', place.id)
  redis.call('ZREM', key .. 'due', 'place ' .. place.id)
  redis.call('ZREM', key .. 'queue', place.member)
end

local function wakeup_of(key, event, place, token, now)
  local id, lease, _, _, inbox = struct.unpack(TEXTS, place.texts)
  local is_grant = event == 'granted'
  return {
    inbox = inbox, lease = lease, event = event, token = token, slots = is_grant and SLOT_0 or '',
    granted_at = now, window = is_grant and place.window or 0, detail = '',
    proof = is_grant and proof_of(key, id, token, SLOT_0, now, place.window) or '',
  }
end

local function hold_of(heir, token, now, stamp)
  return struct.pack('<dddddddd',
    token, 1, heir.window, now + heir.window, 0, heir.lock_delay, 0, stamp) .. heir.texts .. UNCLAIMED
end

local function news_of(key, heir, next_one, token, now)
  local granted = wakeup_of(key, 'granted', heir, token, now)
  if next_one then
    return {granted, wakeup_of(key, 'head', next_one, 0, now)}
  end
  return {granted}
end

-- The holder leaves, and there is nothing to keep or to remember: who comes first holds it now, and who
-- comes next must know that. The reply, the row, and who should be woken.
local function hand_on(raw, key, row, now, stamp, expires)
  if string.sub(raw, 1, 1) ~= 'x' or string.sub(row, 1, 4) ~= AWAITED then
    return nil
  end
  local _, last, capacity, arrivals, used, holds, places, tombs, due, horizon, doubt =
    struct.unpack(AWAITED_ROW, row)
  if capacity ~= 1 or used ~= 1 or holds ~= 0 or places == 0 or now >= due
    or struct.unpack('<I', raw, 2) ~= #raw - 5 or not is_holder(row, string.sub(raw, 6)) then
    return nil
  end
  local heir, next_one = front_of(key, places, now, doubt)
  local token = heir and next_token(last, stamp, heir.floor)
  if not heir or token > LAST_TOKEN - 1
    or now + heir.window + heir.lock_delay > horizon then
    return nil
  end
  last, places, due = token, places - 1, math.min(due, now + heir.window)
  local head
  if places == 0 and tombs == 0 then
    head = struct.pack('<c4ddd', LONE, last, 1, arrivals)
  else
    head = struct.pack(AWAITED_ROW, AWAITED, last, 1, arrivals, 1, 0, places, tombs, due, horizon, doubt)
  end
  strike_out(key, heir)
  row = head .. hold_of(heir, token, now, stamp)
  write_row(redis.call, key, row, expires and keep_held_for(horizon - now, token, stamp))
  return 0, row, news_of(key, heir, next_one, token, now)
end
