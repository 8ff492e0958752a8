-- Writing a book: what has changed, each entry once, when its command has been decided.

local function call_with_all(command, key, arguments)
  for from = 1, #arguments, CHUNK do
    redis.call(command, key, unpack(arguments, from, math.min(from + CHUNK - 1, #arguments)))
  end
end

-- Append to the arguments that a command will have for a suffix.
local function add(calls, command, suffix, one, two)
  local arguments = calls[command .. suffix]
  if not arguments then
    arguments = {command = command, suffix = suffix}
    calls[command .. suffix] = arguments
    calls[#calls + 1] = arguments
  end
  arguments[#arguments + 1] = one
  arguments[#arguments + 1] = two
end

-- What must be said to Redis that it has these entries as they should be. What goes is struck out first: should
-- that be forbidden, nothing has been written.
function Book:calls()
  local removals, additions = {}, {}
  for id, old in pairs(self.stored) do
    local entry = self.known[id]
    if old and old ~= entry then
      if not entry or entry.kind ~= old.kind then
        add(removals, 'HDEL', old.kind, id)
        add(removals, 'ZREM', DUE[old.kind], old.kind .. ' ' .. id)
      end
      if old.kind == 'place' then
        add(removals, 'ZREM', 'queue', member_of(old))
      end
    end
    if entry then
      add(additions, 'HSET', entry.kind, id, Write[entry.kind](entry))
      add(additions, 'ZADD', DUE[entry.kind], due_of(entry.expires), entry.kind .. ' ' .. id)
      if entry.kind == 'place' and old ~= entry then
        add(additions, 'ZADD', 'queue', urgency(entry), member_of(entry))
      end
    end
  end
  return removals, additions
end

-- The keys that exist beside the row's own, once all is written.
function Book:outer_keys()
  local keys = {self.key .. 'due', self.key .. 'ends'}
  for _, kind in ipairs(KINDS) do
    if self[kind] > 0 then
      keys[#keys + 1] = self.key .. kind
    end
  end
  if self.place > 0 then
    keys[#keys + 1] = self.key .. 'queue'
  end
  return keys
end

function Book:keep_for(now, stamp)
  if self.inner or not self:is_simple() then
    return keep_held_for(self.horizon - now, self.last, stamp)
  end
  return keep_idle_for(self.last, stamp)
end

function Book:begins_a_key()
  return self.holds_stored == 0 and self.hold > 0
    or self.places_stored == 0 and self.place > 0
    or self.tombs_stored == 0 and self.tomb > 0
end

function Book:write_entries()
  local removals, additions = self:calls()
  if self.was_simple and #removals + #additions > 0 then
    local key = self.key -- what is there is of an earlier life, whose row was lost
    redis.call('DEL', key .. 'hold', key .. 'place', key .. 'tomb', key .. 'queue', key .. 'due', key .. 'ends')
  end
  for _, calls in ipairs({removals, additions}) do
    for _, call in ipairs(calls) do
      call_with_all(call.command, self.key .. call.suffix, call)
    end
  end
  -- what has lost its last member, and got another one, is a new key to Redis
  self.is_further = self.is_further or #removals > 0 and #additions > 0
end

function Book:row()
  local simple, inner = self:is_simple(), self.inner
  local taken = self.hold > 0 and self.taken -- else it follows from the hold inside
  local parts = (inner and INNER or 0) + (simple and 0 or OUTER) + (taken and TAKEN or 0)
  local row = struct.pack(ROW, 'DI', FORMAT, parts, self.last, self.capacity, self.arrivals)
  if not simple then
    row = row .. struct.pack(COUNTS,
      self.used, self.hold, self.place, self.tomb, self.due, self.horizon, self.doubt)
  end
  if taken then
    row = row .. struct.pack('<Ic0', #taken, taken)
  end
  if inner then
    row = row .. Write.hold(inner)
  end
  return row
end

-- What has been read of the queue, as it is now: newcomers behind that are not in it, unless all was read.
function Book:renew_front()
  local newcomers, front, at = self.newcomers, {}, 1
  local was_whole = #self.front >= self.places_stored
  for n = self.gone + 1, #self.front do
    local place = self.front[n]
    if place and self.known[place.id] == place then
      while newcomers[at] and is_before(newcomers[at], place) do
        front[#front + 1], at = newcomers[at], at + 1
      end
      front[#front + 1] = place
    end
  end
  while was_whole and newcomers[at] do
    front[#front + 1], at = newcomers[at], at + 1
  end
  self.front, self.gone = front, 0
end

-- Redis has it all now, and the next command of the batch may go on from here.
function Book:is_written(row)
  if #self.newcomers + #self.leavers > 0 then
    self:renew_front()
    for _, place in ipairs(self.newcomers) do
      place.is_new = nil
    end
    self.newcomers, self.leavers, self.last_leaver = {}, {}, nil
  end
  self.raw, self.was_simple, self.is_further = row, self:is_simple(), nil
  self.holds_stored, self.places_stored, self.tombs_stored = self.hold, self.place, self.tomb
  self.stored = {}
end

-- Write what has changed; return the row. Redis lets a book expire unless a test moves the time.
function Book:flush(now, stamp, expires)
  local row = self:row()
  if next(self.stored) then
    self:write_entries()
  end
  if expires and not self:is_simple() and (self.is_further or self:begins_a_key()) then
    for _, key in ipairs(self:outer_keys()) do
      redis.call('PEXPIRE', key, self:keep_for(now, stamp))
    end
  end
  if row ~= self.raw then
    write_row(redis.call, self.key, row, expires and self:keep_for(now, stamp))
  end
  self:is_written(row)
  return row
end
