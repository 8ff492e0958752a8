-- The ledger (core/ledger.py, core/transition.py, core/book.py) where Redis applies it atomically: a call applies a
-- batch. `ledger.py` loads this text as a library of Functions, or runs it as a script. A library can't use Lua's
-- own libraries while it is loaded, so outside of functions are only constants. Nothing outlives a call.
--
-- KEYS[i] is the key of command i, and ARGV[i + 1] the command: MessagePack of the list that core/codec.py
-- writes, which `ledger.py` has checked. ARGV[1] is the caller's inbox. An optional last argument is the list
-- [now, stamp, holdoff]: tests set the time, and `holdoff` is in seconds. The answer has a reply for each
-- command, then the notifications for the caller's own inbox.
--
-- What lies in Redis about one key has the key's name, and all but the row a suffix:
--
--   (none)   the row, a string: counts, and one hold. A lock that nobody waits for is one GET and one SET
--   entry    a hash: the other holds, the places of waiters, and the tombs (of ids that ended), by lease id
--   ends     a sorted set: when each hold of the hash ends, in whole microseconds, rounded down
--   due      the same for places and tombs
--   queue    a sorted set: the places, by minus the priority, then by arrival

local FORMAT = 2 -- raised when an older release could no longer keep exclusion beside a newer one

local INFINITY = 1 / 0
local LAST_TOKEN = 9007199254740991 -- below 2^53, so that a double holds every token
local END_OF_TIME = 7258118400000000 -- the year 2200 in microseconds: a stamp beyond it is no time

-- From core/timing.py, core/ledger.py and model.py.
local WINDOW = 5 -- seconds that a grant by notification stands unclaimed, at most
local FRONT = 16 -- waiters at the front, which send a heartbeat every third of a claim timeout
local SIGHT = 64 -- waiters that are looked at; if all are passed over, the next caller is granted
local POSITIONS = 1000 -- waiters ahead are counted up to this number
local STEPS = 64 -- entries that a command ends, and waiters that it grants or refuses; later ones do the rest
local FEW_STEPS, BATCH_STEPS = 4, 256 -- the same once a batch has used up its steps, and those
local TOMBSTONE_TTL = 60 -- seconds that an ended id is remembered, at least
local MAX_HOLDERS = 10000 -- leases that a key may have
local MAX_SLOTS = 1024 -- the largest capacity whose units are numbered
local HOLDERS_NAMED = 8 -- by a refusal
local HOLDERS_SHOWN, WAITERS_SHOWN = 100, 100 -- by a status

local DAY = 86400 -- seconds that a book is kept when only its last token still matters
local SLACK = 3600 -- seconds that Redis keeps it beyond that, so that expiries are seldom set anew
local CHUNK = 1000 -- ids that one call of Redis reads
local FRONT_READ, MORE_READ = 2, 64 -- places that are read at first (the head and the next), and then

local function corrupt(what)
  error({err = what})
end

local function next_token(last, stamp, floor)
  local believable = stamp <= END_OF_TIME and stamp or 0
  local token = math.max(last + 1, floor + 1, believable)
  if token > LAST_TOKEN then
    corrupt('the fencing tokens of this key are used up') -- a double can't tell the next ones apart
  end
  return token
end

local function claim_timeout(ttl)
  return math.min(WINDOW, math.max(ttl / 2, math.min(ttl, 0.5)))
end

-- ---- what is written and read ---------------------------------------------------------------------

-- The fields of each list behind its name: of commands in the order of model.py, then of entries. `lease` is
-- the fingerprint of the id, since Redis has no SHA-256. Python's entries also have a `beat`, for observers
-- without the store's clock; nobody observes Redis without its clock.
local FIELDS = {
  acquire = {
    'id', 'owner', 'ttl', 'units', 'capacity', 'queue', 'patience', 'priority', 'note', 'floor', 'lock_delay',
    'inbox', 'trace', 'address', 'lease',
  },
  renew = {'id', 'ttl', 'inbox'},
  release = {'id', 'keep', 'bury'},
  resize = {'id', 'units', 'seq'},
  inspect = {},
  revoke = {'lease', 'reason', 'now'},
  hold = {
    'id', 'state', 'expires', 'ttl', 'token', 'units', 'slots', 'seq', 'lock_delay', 'bury', 'since', 'lease',
    'owner', 'note', 'detail', 'inbox', 'address', 'trace',
  },
  place = {
    'id', 'expires', 'ttl', 'grant_ttl', 'units', 'priority', 'arrival', 'silence', 'seen', 'floor', 'lock_delay',
    'since', 'lease', 'owner', 'note', 'inbox', 'address', 'trace',
  },
  tomb = {'id', 'expires', 'ttl', 'reason', 'detail'},
}

local function named(list)
  local fields, found = FIELDS[list[1]], {kind = list[1]}
  for i = 1, #fields do
    found[fields[i]] = list[i + 1]
  end
  return found
end

local function packed(entry)
  local fields, list = FIELDS[entry.kind], {entry.kind}
  for i = 1, #fields do
    list[i + 1] = entry[fields[i]]
  end
  return cmsgpack.pack(list)
end

local function unpacked(raw, id)
  local list, more = cmsgpack.unpack(raw)
  local fields = type(list) == 'table' and FIELDS[list[1]]
  if not fields or #list ~= #fields + 1 or more ~= nil or id and list[2] ~= id then
    corrupt('an entry is not what it should be')
  end
  return named(list)
end

-- Another table with the same fields, but for some.
local function changed(original, changes)
  local copy = {}
  for field, value in pairs(original) do
    copy[field] = value
  end
  for field, value in pairs(changes) do
    copy[field] = value
  end
  return copy
end

-- A row: a mark and the format; what is inside (0: nothing, 1: a hold, 2: a plain one); last token, capacity,
-- arrivals; used units; how many holds, places and tombs the hash has; when the first of all ends, or earlier;
-- until when the keys with a suffix are kept; the newest token that nobody claimed; the slots that are taken. Then
-- the hold inside. A plain one is three numbers, and its Acquire as it came, which spares packing it.
local ROW = '<c2BBddddddddddIc0'
local PLAIN = '<ddd' -- token, when it ends, since
local ACQUIRED_BY = '\220\0\16\167acquire' -- how an Acquire begins, before its id: a list of 16, and its name

-- Milliseconds that Redis keeps a row of which something matters for so many seconds: a day longer, and
-- until the clock that seeds tokens has passed its last one.
local function lifetime(seconds, last, stamp)
  local kept = math.max(seconds, (last - stamp) / 1e6, 0)
  return math.ceil(math.min((kept + DAY) * 1000, 1e14))
end

-- When nothing that follows from an entry can matter any more; what a revoked or unclaimed hold leaves
-- for TOMBSTONE_TTL is within the day.
local function over(entry)
  return entry.expires + (entry.lock_delay or 0) + (entry.bury or 0)
end

-- The plain hold behind a row, which is the end of this text.
local function plain_hold(raw)
  local token, expires, since, at = struct.unpack(PLAIN, raw)
  return changed(named(cmsgpack.unpack(string.sub(raw, at))), {
    kind = 'hold', state = 'held', expires = expires, token = token, slots = {0}, seq = 0, bury = 0, since = since,
    detail = '',
  })
end

-- ---- slots: a string with a bit for each unit that is taken, the lowest first -------------------------

local function mark(taken, slots, is_taken)
  for _, slot in ipairs(slots) do
    local at, mask = math.floor(slot / 8) + 1, bit.lshift(1, slot % 8)
    taken = taken .. string.rep('\0', at - #taken)
    local byte = string.byte(taken, at)
    byte = is_taken and bit.bor(byte, mask) or bit.band(byte, bit.bnot(mask))
    taken = string.sub(taken, 1, at - 1) .. string.char(byte) .. string.sub(taken, at + 1)
  end
  return taken
end

-- ---- the book of one key --------------------------------------------------------------------------

-- `known` has the entries of the hash that were read or written (false: there is none), `raws` how they lie
-- there. Entries are written at once, and `log` keeps what was there before, so that `undo` can put it back if
-- the command fails; the row is written last. The hold inside the row, `inner`, is in none of these.
local Book = {}
Book.__index = Book

local INDEX = {hold = 'ends', place = 'due', tomb = 'due'} -- where the end of each is

local function open_book(key, raw)
  local book = setmetatable({
    key = key, raw = raw, last = 0, capacity = 0, arrivals = 0, used = 0, hold = 0, place = 0, tomb = 0,
    due = INFINITY, horizon = 0, doubt = 0, taken = '', known = {}, raws = {}, log = {}, front = {},
  }, Book)
  if raw then
    local sign, format, inside, at
    sign, format, inside, book.last, book.capacity, book.arrivals, book.used, book.hold, book.place, book.tomb,
      book.due, book.horizon, book.doubt, book.taken, at = struct.unpack(ROW, raw)
    if sign ~= 'DI' or format ~= FORMAT or inside > 2 or (inside > 0) ~= (at <= #raw) then
      corrupt('this is no row of a book')
    elseif inside > 0 then
      book.inside, book.inner_raw = inside, string.sub(raw, at)
      book.inner = (inside == 1 and unpacked or plain_hold)(book.inner_raw)
    end
  end
  return book
end

-- There is nothing but the row.
function Book:is_short()
  return self.hold + self.place + self.tomb == 0
end

function Book:holding()
  return self.hold + (self.inner and 1 or 0)
end

-- Read what the hash has of these ids, unless that is known.
function Book:read(ids)
  local unknown = {}
  for _, id in ipairs(ids) do
    unknown[#unknown + 1] = self.known[id] == nil and id or nil
  end
  for from = 1, #unknown, CHUNK do
    local to = math.min(from + CHUNK - 1, #unknown)
    for i, raw in ipairs(redis.call('HMGET', self.key .. 'entry', unpack(unknown, from, to))) do
      local id = unknown[from + i - 1]
      self.known[id], self.raws[id] = raw and unpacked(raw, id), raw
    end
  end
end

function Book:get(id)
  if self.inner and self.inner.id == id then
    return self.inner
  elseif not self:is_short() then
    self:read({id})
  end
  return self.known[id] or nil
end

-- The entries of these ids, all of which must be there.
function Book:get_all(ids)
  local found = {}
  self:read(ids)
  for i, id in ipairs(ids) do
    found[i] = self.known[id] or corrupt('an entry is missing')
  end
  return found
end

local function ends_before(one, other)
  return one.expires < other.expires or one.expires == other.expires and one.id < other.id
end

-- The first `count` of a list, in the order of their ends and ids.
local function first_of(list, count)
  table.sort(list, ends_before)
  for i = #list, count + 1, -1 do
    list[i] = nil
  end
  return list
end

-- The holds that time ends first.
function Book:first_to_end(count)
  local stored = math.min(count, self.hold)
  local ids = stored > 0 and redis.call('ZRANGE', self.key .. 'ends', 0, stored - 1) or {}
  if #ids ~= stored then
    corrupt('the holds are not as many as they should be')
  end
  local found = self:get_all(ids)
  found[#found + 1] = self.inner
  return first_of(found, count)
end

-- A short sorted set keeps its scores as texts, and whole numbers are the quickest to read and write.
local function score_of(time)
  return math.floor(time * 1e6)
end

-- The first `most` entries whose time is over.
function Book:ended(now, most)
  local found, ids = {}, {}
  if now < self.due then
    return found
  end
  self.due = INFINITY
  for _, suffix in ipairs(self:is_short() and {} or {'ends', 'due'}) do
    local listed = redis.call('ZRANGE', self.key .. suffix, 0, most, 'WITHSCORES')
    for i = 1, #listed, 2 do
      local score = tonumber(listed[i + 1])
      if score > score_of(now) then
        self.due = math.min(self.due, (score - 1) / 1e6) -- a look too early costs nothing
        break
      end
      ids[#ids + 1] = listed[i]
    end
  end
  local looked_at = self:get_all(ids)
  looked_at[#looked_at + 1] = self.inner
  for _, entry in ipairs(looked_at) do
    if entry.expires <= now then
      found[#found + 1] = entry
    else
      self.due = math.min(self.due, entry.expires)
    end
  end
  self.due = #found > most and now or self.due
  return first_of(found, most)
end

-- The queue: places by priority, then by arrival.

local function urgency(place)
  return 0 - place.priority -- never minus zero
end

local function member_of(place)
  return string.format('%016.0f', place.arrival) .. place.id
end

-- The n-th place, first come first; nil behind the last. `front` has the first places, as far as they were read.
function Book:nth_place(n)
  local front = self.front
  while n > #front and #front < self.place do
    local to = math.min(#front + (#front == 0 and FRONT_READ or MORE_READ), self.place)
    local ids = redis.call('ZRANGE', self.key .. 'queue', #front, to - 1)
    if #front + #ids ~= to then
      corrupt('the queue is not as long as it should be')
    end
    for i, member in ipairs(ids) do
      ids[i] = string.sub(member, 17)
    end
    for _, place in ipairs(self:get_all(ids)) do
      front[#front + 1] = place
    end
  end
  return front[n]
end

-- How many places are before one of the queue, or before one that is about to join it.
function Book:ahead_of(place)
  local queue, ahead = self.key .. 'queue', 0
  if self.known[place.id] == place then
    ahead = redis.call('ZRANK', queue, member_of(place)) or corrupt('a place is not in the queue')
  elseif self.place > 0 then
    ahead = redis.call('ZCOUNT', queue, '-inf', urgency(place))
  end
  return math.min(ahead, POSITIONS)
end

-- `own` and the lowest free slots, `units` of both; none where units aren't numbered.
function Book:free_slots(units, own)
  if self.capacity > MAX_SLOTS then
    return {}
  end
  local slots, at = {unpack(own)}, 1
  while #slots < units do
    at = string.find(self.taken, '[^\255]', at) or math.max(at, #self.taken + 1)
    local byte = string.byte(self.taken, at) or 0
    for slot = (at - 1) * 8, at * 8 - 1 do
      if #slots < units and bit.band(byte, bit.lshift(1, slot % 8)) == 0 then
        slots[#slots + 1] = slot
      end
    end
    at = at + 1
  end
  table.sort(slots)
  return slots
end

-- Write an entry of the hash, or strike it out (`entry` is false). What goes is struck out first.
function Book:write(id, entry)
  local key, old, raw = self.key, self.known[id], nil
  local is_other = old ~= entry
  self.log[#self.log + 1] = {id, self.raws[id]}
  self.known[id] = entry
  if is_other and (old and old.kind == 'place' or entry and entry.kind == 'place') then
    self.front = {}
  end
  if old and is_other then
    if not entry then
      redis.call('HDEL', key .. 'entry', id)
    end
    if not entry or INDEX[entry.kind] ~= INDEX[old.kind] then
      redis.call('ZREM', key .. INDEX[old.kind], id)
    end
    if old.kind == 'place' then
      redis.call('ZREM', key .. 'queue', member_of(old))
    end
  end
  if entry then
    raw = packed(entry)
    redis.call('HSET', key .. 'entry', id, raw)
    redis.call('ZADD', key .. INDEX[entry.kind], score_of(entry.expires), id)
    if entry.kind == 'place' and is_other then
      redis.call('ZADD', key .. 'queue', urgency(entry), member_of(entry))
    end
  end
  self.raws[id] = raw
end

-- The command has failed: put back what was there before it.
function Book:undo()
  for i = #self.log, 1, -1 do
    local id, raw = unpack(self.log[i], 1, 2)
    pcall(self.write, self, id, raw and unpacked(raw) or false)
  end
end

-- An entry does not count any more.
function Book:discount(entry)
  if entry.kind == 'hold' then
    self.used = self.used - entry.units
    self.taken = mark(self.taken, entry.slots, false)
  end
  if entry == self.inner then
    self.inner = nil
  else
    self[entry.kind] = self[entry.kind] - 1
  end
end

function Book:remove(entry)
  self:discount(entry)
  if self.known[entry.id] then
    self:write(entry.id, false)
  end
end

-- Write an entry in place of whatever its id had. An entry that has changed is written again.
function Book:put(entry)
  local id, old = entry.id, self:get(entry.id)
  local is_outside = old and old ~= self.inner
  self.due = math.min(self.due, entry.expires)
  if over(entry) > self.horizon then
    self.horizon = over(entry) + SLACK
    self.is_further = true
  end
  if old ~= entry then
    if old then
      self:discount(old)
    end
    if entry.kind == 'hold' then
      self.used = self.used + entry.units
      self.taken = mark(self.taken, entry.slots, true)
      if not self.inner then
        self.inner, self.inner_raw = entry, nil
        return is_outside and self:write(id, false)
      end
    end
    if self:is_short() and not is_outside then -- what is there is of an earlier life, whose row was lost
      redis.call('DEL', self.key .. 'entry', self.key .. 'ends', self.key .. 'due', self.key .. 'queue')
    end
    self.is_further = self.is_further or self[entry.kind] == 0 -- it may begin a key
    self[entry.kind] = self[entry.kind] + 1
  end
  if entry == self.inner then
    self.inner_raw = nil -- it has changed
  else
    self:write(id, entry)
  end
end

-- Write the row if it has changed, and let all keys expire when nothing of them can matter any more.
function Book:flush(turn)
  if self:is_short() and not self.inner then
    self.due, self.horizon, self.doubt = INFINITY, 0, 0
  end
  local milliseconds = lifetime(self.horizon - turn.now, self.last, turn.stamp)
  if (self.is_further or self.last > turn.stamp) and not self:is_short() then -- a far token keeps all of it
    for _, suffix in ipairs({'entry', 'ends', 'due', 'queue'}) do
      redis.call('PEXPIRE', self.key .. suffix, milliseconds)
    end
  end
  if self.inner and not self.inner_raw then
    self.inside, self.inner_raw = 1, packed(self.inner)
  end
  local row = struct.pack(ROW, 'DI', FORMAT, self.inner and self.inside or 0, self.last, self.capacity, self.arrivals,
    self.used, self.hold, self.place, self.tomb, self.due, self.horizon, self.doubt, #self.taken, self.taken)
  row = row .. (self.inner and self.inner_raw or '')
  if row ~= self.raw and (self.raw or self.capacity > 0 or not self:is_short()) then -- a look writes nothing
    redis.call('SET', self.key, row, 'PX', milliseconds)
    self.raw = row
  end
  self.log, self.is_further = {}, nil
end

-- ---- a turn: one call's time, and for each of its commands what time has changed --------------------

-- `now`, `stamp`, `closed_for` (seconds in which nothing is granted yet) and `notifications` are the call's. Of
-- one command are `book`, `caller` (the id that is answered: it needs no notification), `steps` (how many entries
-- it may still end and waiters grant or refuse), and `units_free_in` (when units that it granted, perhaps to the
-- dead, or closed are free again by time).

-- core/proof.py, by SHA-1.
local function proof_of(key, hold, granted_at)
  local name = string.sub(key, 7, -2) -- of dibs:{name}, escaped as in ledger.py
  name = name == '%' and '' or string.gsub(string.gsub(name, '%%7D', '}'), '%%25', '%%')
  return redis.sha1hex(struct.pack('>dddd', hold.token, granted_at, hold.ttl, #name) .. name
    .. table.concat(hold.slots, ',') .. hold.id)
end

-- Notify the owner of an entry.
local function notify(turn, entry, event, detail)
  local is_grant = event == 'granted'
  if entry.id ~= turn.caller then
    table.insert(turn.notifications, {
      key = turn.book.key, inbox = entry.inbox, lease = entry.lease, is_head = event == 'head',
      list = {
        'notification', entry.lease, event, is_grant and entry.token or 0, is_grant and entry.slots or {}, turn.now,
        is_grant and entry.ttl or 0, detail or '', is_grant and proof_of(turn.book.key, entry, turn.now) or '',
      },
    })
  end
end

-- It missed its heartbeats, its time is over, or it was not heard of since `doubt`, a token that nobody claimed.
local function is_passed_over(turn, place, doubt)
  local heard = place.expires - place.ttl
  return place.expires <= turn.now or turn.now - heard > place.silence or place.seen < doubt
end

-- How many of the first `most` waiters are passed over, all before the first one that is not.
local function count_passed_over(turn, most, doubt)
  for n = 1, most do
    if not is_passed_over(turn, turn.book:nth_place(n), doubt) then
      return n - 1
    end
  end
  return most
end

-- There is no room for so many units more, or for one more lease.
local function is_full(book, units)
  return book.used + units > book.capacity or book:holding() >= MAX_HOLDERS
end

-- There is room, and all waiters in sight are passed over. A try passes only those that missed a heartbeat:
-- others that are in doubt may live.
local function fits(turn, units, is_try)
  local book = turn.book
  local in_sight = math.min(book.place, SIGHT)
  return not is_full(book, units) and count_passed_over(turn, in_sight, is_try and 0 or book.doubt) == in_sight
end

local function take_token(turn, floor)
  turn.book.last = next_token(turn.book.last, turn.stamp, floor)
  return turn.book.last
end

-- Let an entry live `ttl` longer from now, or as long as it would anyway; return how long.
local function extend(turn, entry, ttl)
  local left = math.max(ttl, math.min(entry.expires - turn.now, entry.ttl))
  entry.ttl = left
  entry.expires = turn.now + left
  turn.book:put(entry)
  return left
end

-- A hold of what a command or a place asks for.
local function hold_for(asked, turn, state, ttl)
  local token, slots = take_token(turn, asked.floor), turn.book:free_slots(asked.units, {})
  return changed(asked, {
    kind = 'hold', state = state, expires = turn.now + ttl, ttl = ttl, token = token, slots = slots, seq = 0,
    bury = 0, since = turn.stamp, detail = '',
  })
end

-- The units of a hold that is over stay taken, by nobody.
local function keep(turn, hold, seconds, remembered)
  turn.book:put(changed(hold, {
    state = 'retained', expires = turn.now + seconds, ttl = seconds, seq = 0, lock_delay = 0, bury = remembered, lease = '',
    owner = '', detail = '', inbox = '', address = '', trace = '',
  }))
end

-- Remember that an id has ended.
local function bury(turn, id, seconds, reason, detail)
  turn.book:put({
    kind = 'tomb', id = id, expires = turn.now + seconds, ttl = seconds, reason = reason, detail = detail or '',
  })
end

-- An entry's time is over; what follows counts from then, however late we look.
local function expire(turn, entry)
  local book, late = turn.book, turn.now - entry.expires
  if entry.kind ~= 'hold' then
    return book:remove(entry)
  end
  -- The owner may not know, and ask again.
  local ends_its_id = entry.state == 'unclaimed' or entry.state == 'revoked'
  if entry.state == 'unclaimed' then
    book.doubt = math.max(book.doubt, entry.token)
  end
  local remembered = ends_its_id and TOMBSTONE_TTL or entry.bury
  if entry.state ~= 'retained' and entry.lock_delay > late then
    turn.units_free_in = math.min(turn.units_free_in, entry.lock_delay - late)
    keep(turn, entry, entry.lock_delay - late, ends_its_id and TOMBSTONE_TTL or 0)
  elseif remembered > late then
    bury(turn, entry.id, remembered - late, ends_its_id and entry.state or 'buried', entry.detail)
  else
    book:remove(entry)
  end
end

-- The place becomes a hold that stands for a claim window until its owner speaks.
local function grant_waiter(turn, place)
  local window = claim_timeout(place.grant_ttl)
  local hold = hold_for(place, turn, 'unclaimed', window)
  turn.book:put(hold)
  turn.units_free_in = math.min(turn.units_free_in, window)
  notify(turn, hold, 'granted')
end

-- Grant the first waiter that is not passed over, if it fits; tell whether to look again.
local function grant_next(turn)
  local book = turn.book
  for n = 1, math.min(book.place, SIGHT) do
    local place = book:nth_place(n)
    if place.units > book.capacity then -- which has shrunk below what this place asks for
      bury(turn, place.id, TOMBSTONE_TTL, 'too_large')
      notify(turn, place, 'refused')
      return true
    elseif is_full(book, 1) then
      return false
    elseif not is_passed_over(turn, place, book.doubt) then
      if book.used + place.units > book.capacity then
        return false
      end
      grant_waiter(turn, place)
      return true
    end
  end
  return false
end

-- End what time has ended, then grant the head of the queue while it fits: as far as STEPS go. What the caller
-- itself has ends in any case.
local function settle(turn)
  local book = turn.book
  for _, entry in ipairs(turn.steps > 0 and book:ended(turn.now, turn.steps) or {}) do
    expire(turn, entry)
    turn.steps = turn.steps - 1
  end
  local own = turn.steps == 0 and turn.caller and book:get(turn.caller)
  if own and own.expires <= turn.now then
    expire(turn, own)
  end
  while turn.steps > 0 and book.place > 0 and turn.closed_for == 0 and grant_next(turn) do
    turn.steps = turn.steps - 1
  end
end

-- The hold is its owner's for `ttl` from now.
local function claim(turn, hold, ttl)
  hold.state = 'held'
  return {'granted', hold.token, hold.slots, extend(turn, hold, ttl)}
end

-- When the owner of a place should send its next heartbeat: at once where STEPS ran out.
local function next_heartbeat_in(turn, place, ahead)
  local window, often = claim_timeout(place.grant_ttl), claim_timeout(place.grant_ttl) / 3
  local is_front = place.silence == window
  if turn.steps == 0 then
    return 0
  elseif is_front and ahead > 0 then
    return often
  end
  local free_in = window
  if turn.book.due < turn.now + window then -- else nothing ends by then
    local first = turn.book:first_to_end(1)[1]
    free_in = first and math.max(first.expires - turn.now, 0) or INFINITY
  end
  return is_front and math.min(often, free_in)
    or math.min(place.ttl / 3, turn.units_free_in, window + math.min(window, free_in))
end

-- A heartbeat: the owner of a place lives. It may be its turn already, and no notification is needed then.
-- Nothing is answered where the place asks for more than there is.
local function heartbeat(turn, place, ttl)
  local book = turn.book
  if place.units > book.capacity then
    return bury(turn, place.id, TOMBSTONE_TTL, 'too_large')
  end
  local ahead, window = book:ahead_of(place), claim_timeout(place.grant_ttl)
  local is_front = ahead < FRONT or ahead - count_passed_over(turn, math.min(ahead, SIGHT), book.doubt) < FRONT
  place.silence = is_front and window or 3 * window
  place.seen = book.last
  extend(turn, place, place.ttl)
  local waiting = book.place
  settle(turn)
  if book:get(place.id) == place and turn.closed_for == 0 and fits(turn, place.units) then
    grant_waiter(turn, place) -- from beyond what `settle` looks at
  end
  local entry = book:get(place.id)
  if entry and entry.kind == 'hold' then
    return claim(turn, entry, ttl)
  end
  ahead = book.place ~= waiting and book:ahead_of(place) or ahead
  return {'queued', ahead, next_heartbeat_in(turn, place, ahead), turn.now}
end

local function age(turn, since)
  return math.max(turn.stamp - since, 0) / 1e6
end

-- Holds, as others may see them: never with their ids.
local function shown(turn, holds)
  local list = {}
  for i, hold in ipairs(holds) do
    list[i] = {
      hold.lease, hold.owner, hold.token, hold.units, hold.slots, age(turn, hold.since),
      math.max(hold.expires - turn.now, 0), hold.note, hold.state, hold.address, hold.trace,
    }
  end
  return list
end

-- ---- the rules, one for each command ----------------------------------------------------------------

local function refused(reason, holders, again)
  return {'refused', reason, holders or {}, again or 0}
end

local function lost(reason, detail)
  return {'lost', reason or 'expired', detail or ''}
end

-- Not now: who is in the way, and when time alone could change that: at once where STEPS ran out.
local function refuse(turn)
  local holds, is_closed = turn.book:first_to_end(HOLDERS_NAMED), true
  for _, hold in ipairs(holds) do
    is_closed = is_closed and hold.state == 'retained'
  end
  local again = turn.steps == 0 and 0 or holds[1] and math.max(holds[1].expires - turn.now, 0) or WINDOW
  return refused(is_closed and holds[1] and 'closed' or 'held', shown(turn, holds), again)
end

local Rules = {}

function Rules.acquire(turn, command)
  local book = turn.book
  local entry = book:get(command.id)
  if entry then -- a repeat renews a living hold, keeps a place alive, and never revives what has ended
    if entry.reason == 'too_large' then
      return refused('too_large')
    elseif entry.kind == 'tomb' or entry.state == 'retained' or entry.state == 'revoked' then
      return {'gone'}
    end
    entry.inbox = command.inbox -- its owner may have reconnected
    if entry.kind == 'hold' then
      return claim(turn, entry, command.ttl)
    end
    return heartbeat(turn, entry, command.ttl) or refused('too_large')
  elseif command.units > command.capacity then
    return refused('too_large')
  elseif turn.closed_for > 0 then
    return refused('closed', nil, turn.closed_for)
  end
  book.capacity = command.capacity
  if book.place > 0 then
    settle(turn) -- a greater capacity lets the queue in first
  end
  if fits(turn, command.units, not command.queue) then
    local hold = hold_for(command, turn, 'held', command.ttl)
    book:put(hold)
    return {'granted', hold.token, hold.slots, hold.ttl}
  elseif not command.queue then
    return refuse(turn)
  end
  book.arrivals = book.arrivals + 1
  return heartbeat(turn, changed(command, {
    kind = 'place', expires = turn.now + command.patience, ttl = command.patience, grant_ttl = command.ttl,
    arrival = book.arrivals, since = turn.stamp,
  }), command.ttl)
end

function Rules.renew(turn, command)
  local entry = turn.book:get(command.id)
  if not entry then
    return lost()
  elseif command.inbox ~= '' and entry.kind ~= 'tomb' then
    entry.inbox = command.inbox
    turn.book:put(entry)
  end
  if entry.state == 'held' then
    return {'renewed', extend(turn, entry, command.ttl)}
  elseif entry.state == 'unclaimed' then
    return claim(turn, entry, command.ttl)
  elseif entry.kind == 'place' then
    return heartbeat(turn, entry, command.ttl) or lost('expired', 'too large')
  elseif entry.state == 'revoked' or entry.reason == 'revoked' then
    return lost('revoked', entry.detail)
  end
  return lost()
end

function Rules.release(turn, command)
  local book, entry = turn.book, turn.book:get(command.id)
  if not entry or entry.kind == 'tomb' then
    if entry and command.bury > 0 then
      extend(turn, entry, command.bury) -- its Acquire may have been sent again since
    elseif command.bury > 0 then
      bury(turn, command.id, command.bury, 'buried')
    end
    return {'unknown'}
  elseif entry.state == 'retained' then -- a repeat never extends it
    entry.bury = math.max(entry.bury, command.bury)
    book:put(entry)
  elseif entry.kind == 'hold' and command.keep > 0 then
    keep(turn, entry, command.keep, command.bury)
  elseif command.bury > 0 then
    bury(turn, command.id, command.bury, 'buried')
  else
    book:remove(entry)
  end
  return {'released'}
end

local function refuse_growth(turn, hold, units)
  if units > turn.book.capacity then
    return refused('too_large')
  elseif turn.closed_for > 0 then
    return refused('closed', nil, turn.closed_for)
  end
  local others = {}
  for _, other in ipairs(turn.book:first_to_end(HOLDERS_NAMED + 1)) do
    if other ~= hold and #others < HOLDERS_NAMED then
      others[#others + 1] = other
    end
  end
  local again = others[1] and others[1].expires - turn.now or 0
  return refused('held', shown(turn, others), math.max(again, 0))
end

function Rules.resize(turn, command)
  local hold = turn.book:get(command.id)
  if not hold or hold.kind ~= 'hold' or hold.state == 'retained' then
    return lost()
  elseif hold.state == 'revoked' then
    return lost('revoked', hold.detail)
  end
  hold.state = 'held' -- its owner speaks, so it is claimed
  local left = extend(turn, hold, 0)
  local book, grows = turn.book, command.units > hold.units
  if command.seq > hold.seq then
    hold.seq = command.seq -- also of what is refused: its late copy must not succeed
    book:put(hold)
    if not grows or book.used - hold.units + command.units <= book.capacity and turn.closed_for == 0 then
      -- Growing ignores the queue: who holds on would otherwise wait for those who wait for it.
      local stay = math.min(command.units, #hold.slots)
      local slots = grows and book:free_slots(command.units, hold.slots) or {unpack(hold.slots, 1, stay)}
      book:remove(hold)
      hold.token = grows and take_token(turn, 0) or hold.token -- more units are a new grant
      hold.units, hold.slots = command.units, slots
      book:put(hold)
    end
  end
  if command.seq == hold.seq and command.units ~= hold.units then
    return refuse_growth(turn, hold, command.units)
  end
  return {'granted', hold.token, hold.slots, left}
end

function Rules.revoke(turn, command)
  local count, ends_in = 0, 0
  for _, hold in ipairs(turn.book:first_to_end(MAX_HOLDERS)) do
    if hold.state ~= 'retained' and (not command.lease or command.lease == hold.lease) then
      count = count + 1
      notify(turn, hold, 'revoked', command.reason)
      if command.now then
        bury(turn, hold.id, TOMBSTONE_TTL, 'revoked', command.reason)
      else
        hold.state = 'revoked'
        hold.detail = command.reason
        turn.book:put(hold)
        ends_in = math.max(ends_in, hold.expires - turn.now)
      end
    end
  end
  return {'revoked', count, ends_in}
end

function Rules.inspect(turn)
  local book, waiters, holds = turn.book, {}, turn.book:first_to_end(HOLDERS_SHOWN)
  table.sort(holds, function(one, other)
    return one.token < other.token
  end)
  for n = 1, math.min(book.place, WAITERS_SHOWN) do
    local place = book:nth_place(n)
    waiters[n] = {
      place.lease, place.owner, place.units, place.priority, age(turn, place.since), place.note,
      place.address, place.trace,
    }
  end
  return {
    'status', book.capacity, shown(turn, holds), waiters, book.place, book.last, book:holding(), book.used,
  }
end

-- ---- a batch --------------------------------------------------------------------------------------

-- A mutex that nobody else holds or wants is granted and released here, without a book, which costs more than
-- all the rest. The reply is a number: the token of the grant, or 0 for the release. Nothing is done, and
-- nothing returned, where anything is unusual.
local function apply_alone(turn, list, key, raw, argument)
  local name, id, ttl, units, capacity, floor, lock_delay =
    list[1], list[2], list[4], list[5], list[6], list[11], list[12]
  local sign, format, inside, last, arrivals, outside, due, hold_at = 'DI', FORMAT, 0, 0, 0, 0, 0, 0
  if raw then
    local holds, places, tombs, _
    sign, format, inside, last, _, arrivals, _, holds, places, tombs, due, _, _, _, hold_at = struct.unpack(ROW, raw)
    outside = holds + places + tombs
  end
  if sign ~= 'DI' or format ~= FORMAT or outside > 0 or turn.closed_for > 0 then
    return nil
  elseif name == 'acquire' and inside == 0 and units == 1 and capacity == 1 then
    local ends = turn.now + ttl
    last = next_token(last, turn.stamp, floor)
    local row = struct.pack(ROW, 'DI', FORMAT, 2, last, 1, arrivals, 1, 0, 0, 0, ends, ends + lock_delay, 0, 1, '\1')
      .. struct.pack(PLAIN, last, ends, turn.stamp) .. argument
    redis.call('SET', key, row, 'PX', lifetime(ttl + lock_delay, last, turn.stamp))
    return last, row
  elseif name == 'release' and inside == 2 and list[3] == 0 and list[4] == 0 and turn.now < due then
    local begins, from = ACQUIRED_BY .. cmsgpack.pack(id), hold_at + struct.size(PLAIN)
    if string.sub(raw, from, from + #begins - 1) == begins then
      local row = struct.pack(ROW, 'DI', FORMAT, 0, last, 1, arrivals, 0, 0, 0, 0, INFINITY, 0, 0, 0, '')
      redis.call('SET', key, row, 'PX', lifetime(0, last, turn.stamp))
      return 0, row
    end
  end
end

-- The reply to one command. Books stay open for later commands of the batch.
local function apply(turn, key, argument)
  local list, raw = cmsgpack.unpack(argument), turn.rows[key]
  if list[1] == 'invalid' then
    return cmsgpack.pack({'failed', 'invalid', list[2]})
  elseif type(raw) == 'table' then
    error(raw) -- what GET has answered
  end
  if not turn.books[key] then
    local reply, row = apply_alone(turn, list, key, raw, argument)
    if reply then
      turn.rows[key] = row
      return reply
    end
    turn.books[key] = open_book(key, raw)
  end
  local book, command, steps = turn.books[key], named(list), math.max(math.min(turn.steps_left, STEPS), FEW_STEPS)
  turn.book, turn.caller, turn.steps, turn.units_free_in = book, command.id, steps, INFINITY
  local head = book:nth_place(1)
  settle(turn)
  local reply = Rules[command.kind](turn, command)
  settle(turn)
  local new_head = book:nth_place(1)
  if new_head and not (head and head.id == new_head.id) then
    notify(turn, new_head, 'head') -- it must learn when time alone could change its answer
  end
  book:flush(turn)
  turn.steps_left = turn.steps_left - (steps - turn.steps)
  return cmsgpack.pack(reply)
end

-- Redis refuses these at the first write of a script, so nothing of the batch has been done.
local OF_ALL = {'OOM ', 'MISCONF ', 'READONLY ', 'NOREPLICAS '}

-- How servers say that an ACL is in the way.
local FORBIDDEN = {'NOPERM', 'ACL failure', 'The user executing the script'}

local function find_any(problem, words)
  for _, word in ipairs(words) do
    local at = string.find(problem, word, 1, true)
    if at then
      return at
    end
  end
end

-- What a failed command is answered. Nothing is left of it, and later ones go on from what Redis has.
local function failed(turn, key, problem, noted)
  local book = turn.books[key]
  if book then
    book:undo()
    turn.rows[key], turn.books[key] = book.raw, nil
  end
  for n = #turn.notifications, noted + 1, -1 do
    turn.notifications[n] = nil
  end
  return cmsgpack.pack({'failed', find_any(problem, FORBIDDEN) and 'forbidden' or 'corrupt', problem})
end

-- Seconds in which nothing is granted yet, since this server has begun to run, or began to keep leases: the
-- epoch key, which is set on first sight, is gone with everything else, or is of another run. What an old
-- snapshot or a replica brings back is as good as nothing. A server that may not be asked has one run for ever.
local function seconds_closed(now, holdoff)
  local info, told = redis.pcall('INFO', 'server'), redis.pcall('GET', 'dibs:epoch')
  local this_run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or 'unknown'
  local run, since = string.match(type(told) == 'string' and told or '', '^(%w+) (%S+)$')
  since = tonumber(since)
  if not (since and since <= now and run == this_run) then
    since = now
    redis.call('SET', 'dibs:epoch', this_run .. ' ' .. string.format('%.17g', now))
  end
  return math.max(since + holdoff - now, 0)
end

-- Add notifications to the answer where they are for the caller's inbox, and publish the others. Who was the
-- head of a queue for a moment only, during the batch, need not know.
local function send(notifications, inbox, answer)
  local heads, notified, news = {}, {}, {}
  for n = #notifications, 1, -1 do
    local each = notifications[n]
    if each.inbox ~= '' and not (each.is_head and (heads[each.key] or notified[each.lease])) then
      table.insert(news, 1, each)
    end
    heads[each.key], notified[each.lease] = heads[each.key] or each.is_head, true
  end
  for _, each in ipairs(news) do
    local payload = struct.pack('>c2BIc0', 'DI', FORMAT, #each.key, each.key) .. cmsgpack.pack(each.list)
    if each.inbox == inbox then
      answer[#answer + 1] = payload
    else
      redis.pcall('PUBLISH', each.inbox, payload) -- a hint: it may fail
    end
  end
end

local function apply_batch(keys, arguments)
  local terms = arguments[#keys + 2] and cmsgpack.unpack(arguments[#keys + 2]) or {}
  local turn = {
    now = terms[1], stamp = terms[2], closed_for = 0, steps_left = BATCH_STEPS,
    books = {}, rows = {}, notifications = {},
  }
  if not turn.now then
    local time = redis.call('TIME')
    turn.stamp = time[1] * 1000000 + time[2]
    turn.now = turn.stamp / 1000000
  end
  for i, raw in ipairs(redis.call('MGET', unpack(keys))) do
    local key = keys[i]
    raw = raw or redis.pcall('GET', key) -- which tells a missing key from one of another type
    turn.rows[key] = raw
    local format = type(raw) == 'string' and string.sub(raw, 1, 2) == 'DI' and string.byte(raw, 3)
    if format and format ~= FORMAT then
      return redis.error_reply('DIBSFORMAT this server has leases of format ' .. format
        .. ', and this release of dibs reads format ' .. FORMAT
        .. ': nothing is granted; run the same release everywhere on it')
    end
  end
  turn.closed_for = terms[3] and seconds_closed(turn.now, terms[3]) or 0
  local answer = {}
  for i, key in ipairs(keys) do
    local noted = #turn.notifications
    local ok, reply = pcall(apply, turn, key, arguments[i + 1])
    if not ok then
      local problem = type(reply) == 'table' and reply.err or tostring(reply)
      local of_all = find_any(problem, OF_ALL)
      if of_all then
        return redis.error_reply(string.sub(problem, of_all)) -- Redis 6 puts its place before it
      end
      reply = failed(turn, key, problem, noted)
    end
    answer[i] = reply
  end
  if #turn.notifications > 0 then
    send(turn.notifications, arguments[1], answer)
  end
  return answer
end
