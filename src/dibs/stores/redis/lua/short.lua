-- The short way: a mutex that nobody else wants is granted, renewed and released here, without a book and
-- without the definitions of the long way, which would cost a lone command more than all the rest. It
-- answers what `ledger.lua` would, or nothing, or fails, where anything is unusual: then that is asked.
--
-- A small letter says that a command asks for little, and a number answers it: the token of the grant, or
-- 0 for what is released.

local IDLE, LONE = 'DI\1\0', 'DI\1\1' -- how the row begins of a key with no hold, or one
local NUMBERS = '<c4ddddddddddd' -- IDLE or LONE; last, capacity, arrivals; those of the hold
local ID_AT = 93 -- where a hold's texts begin
local HELD = '\4\0\0\0held\4\0\0\0\0\0\0\0\0\0\0\0' -- how a plain hold ends: state, slot 0, no detail

-- `call` is `redis.call`, which raises what goes wrong, or `redis.pcall`, which returns it.
local function write_row(call, key, row, keep)
  if keep then
    return call('SET', key, row, 'PX', keep)
  end
  return call('SET', key, row)
end

-- Whether that was possible. If it was not, the long way comes upon the same error, and tells it.
local function overwrite(key, row, keep)
  return not write_row(redis.pcall, key, row, keep).err
end

-- The plainest wish, for a key that is idle.
local function grant_short(raw, key, row, now, stamp, expires)
  local _, ttl, _, length = struct.unpack(PLAIN, raw, 2)
  if #row ~= #EMPTY or #raw ~= 22 + length then
    return nil
  end
  local head, last, _, arrivals = struct.unpack('<c4ddd', row)
  local token = next_token(last, stamp, 0)
  if head ~= IDLE or token >= LAST_TOKEN then
    return nil
  end
  row = struct.pack(NUMBERS, LONE, token, 1, arrivals, token, 1, ttl, now + ttl, 0, 0, 0, stamp)
    .. string.sub(raw, 23) .. HELD
  if overwrite(key, row, expires and keep_held_for(ttl, token, stamp)) then
    return token, row
  end
end

-- It is held plainly, by that id (which is behind its length).
local function is_lone(row, id)
  return string.sub(row, 1, 4) == LONE and string.sub(row, ID_AT, ID_AT + #id - 1) == id
    and string.sub(row, -#HELD) == HELD
end

-- The holder leaves, and there is nothing to keep or to remember.
local function release_short(raw, key, row, now, stamp, expires)
  if struct.unpack('<I', raw, 2) ~= #raw - 5 or not is_lone(row, string.sub(raw, 2)) then
    return nil
  end
  local last, _, _, _, _, _, expiry = struct.unpack('<ddddddd', row, 5)
  if now >= expiry then
    return nil
  end
  row = IDLE .. string.sub(row, 5, #EMPTY)
  if overwrite(key, row, expires and keep_idle_for(last, stamp)) then
    return 0, row
  end
end

-- A sign of life of the holder.
local function renew_short(raw, key, row, now, stamp, expires)
  local wish, id, new_inbox = struct.unpack(RENEW, raw, 2)
  if not is_lone(row, string.sub(raw, 10, 13) .. id) then
    return nil
  end
  local ttl, expiry, _, lock_delay = struct.unpack('<dddd', row, 45)
  local _, _, _, _, inbox = struct.unpack(TEXTS, row, ID_AT)
  if now >= expiry or not (wish > 0 and wish < INFINITY)
    or new_inbox ~= '' and new_inbox ~= inbox then
    return nil
  end
  local left = math.max(wish, math.min(expiry - now, ttl))
  row = string.sub(row, 1, 44) .. struct.pack('<dd', left, now + left) .. string.sub(row, 61)
  if overwrite(key, row, expires and keep_held_for(left + lock_delay, struct.unpack('<d', row, 5), stamp)) then
    return struct.pack('<c1d', 'N', left), row
  end
end

-- The reply to a command, and the row that its key has now.
local function short(raw, key, row, now, stamp, expires)
  local letter = string.sub(raw, 1, 1)
  if letter == 'a' then
    return grant_short(raw, key, row, now, stamp, expires)
  elseif letter == 'x' then
    return release_short(raw, key, row, now, stamp, expires)
  elseif letter == 'N' then
    return renew_short(raw, key, row, now, stamp, expires)
  end
end
