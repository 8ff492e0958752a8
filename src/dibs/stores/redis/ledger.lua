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
--   entry    a hash: the other holds, the waiters, and the tombstones (of ids that ended), by lease id
--   ends     a sorted set: when each hold of the hash ends, in whole microseconds, rounded down
--   due      the same for waiters and tombstones
--   queue    a sorted set: the waiters, by minus the priority, then by arrival

local FORMAT = 3 -- raised when an older release could no longer keep exclusion beside a newer one

local INFINITY = 1 / 0
local LAST_TOKEN = 9007199254740991 -- below 2^53, so that a double holds every token
local END_OF_TIME = 7258118400000000 -- the year 2200 in microseconds: a stamp beyond it is no time

-- From core/timing.py, core/ledger.py and model.py.
local MAX_CLAIM_TIMEOUT = 5 -- seconds in which a grant by notification must be claimed, at most
local HEARTBEAT_POSITIONS = 16 -- waiters at the front, which send a heartbeat every third of a claim timeout
local EXAMINED_POSITIONS = 64 -- waiters that are looked at; if all are passed over, the next caller is granted
local COUNTED_POSITIONS = 1000 -- waiters ahead are counted up to this number
local STEPS = 64 -- entries that a command ends, and waiters that it grants or refuses; later ones do the rest
local LEAST_STEPS, BATCH_STEPS = 4, 256 -- the same once a batch has used up its steps, and those
local TOMBSTONE_TTL = 60 -- seconds that an ended id is remembered, at least
local MAX_HOLDERS = 10000 -- leases that a key may have
local MAX_SLOTS = 1024 -- the largest capacity whose units are numbered
local HOLDERS_NAMED = 8 -- by a refusal
local HOLDERS_SHOWN, WAITERS_SHOWN = 100, 100 -- by a status

local DAY = 86400 -- seconds that a book is kept when only its last token still matters
local SLACK = 3600 -- seconds that Redis keeps it beyond that, so that expiries are seldom set anew
local CHUNK = 1000 -- ids that one call of Redis reads
local FRONT_READ, MORE_READ = 2, 64 -- waiters that are read at first (the head and the next), and then

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
  return math.min(MAX_CLAIM_TIMEOUT, math.max(ttl / 2, math.min(ttl, 0.5)))
end

-- ---- what is written and read ---------------------------------------------------------------------

-- The fields of each list behind its name: of commands as in model.py, then of entries. `lease` is the
-- fingerprint of the id, since Redis has no SHA-256. Only observers without the store's clock need a `beat`.
local FIELDS = {
  acquire = {
    'id', 'owner', 'ttl', 'units', 'capacity', 'queue', 'waiter_ttl', 'priority', 'note', 'floor', 'lock_delay',
    'inbox', 'trace', 'address', 'lease',
  },
  renew = {'id', 'ttl', 'inbox'},
  release = {'id', 'retain', 'tombstone'},
  resize = {'id', 'units', 'seq'},
  inspect = {},
  revoke = {'lease', 'reason', 'now'},
  hold = {
    'id', 'state', 'expires', 'ttl', 'token', 'units', 'slots', 'seq', 'lock_delay', 'tombstone', 'since', 'lease',
    'owner', 'note', 'detail', 'inbox', 'address', 'trace',
  },
  waiter = {
    'id', 'expires', 'ttl', 'grant_ttl', 'units', 'priority', 'arrival', 'silence', 'seen', 'floor', 'lock_delay',
    'since', 'lease', 'owner', 'note', 'inbox', 'address', 'trace',
  },
  tombstone = {'id', 'expires', 'ttl', 'reason', 'detail'},
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
-- arrivals; used units; how many holds, waiters and tombstones the hash has; when the first of all ends, or earlier;
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

-- The plain hold behind a row, which is the end of this text.
local function plain_hold(raw)
  local token, expires, since, at = struct.unpack(PLAIN, raw)
  return changed(named(cmsgpack.unpack(string.sub(raw, at))), {
    kind = 'hold', state = 'held', expires = expires, token = token, slots = {0}, seq = 0, tombstone = 0, since = since,
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

-- The slots in `own` and the lowest free ones, so many together.
local function free_slots(taken, own, units)
  local slots, at = {unpack(own)}, 1
  while #slots < units do
    at = string.find(taken, '[^\255]', at) or math.max(at, #taken + 1)
    local byte = string.byte(taken, at) or 0
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

-- ---- the book of one key --------------------------------------------------------------------------

-- `known` has the entries of the hash that were read or written (false: there is none), `raws` how they lie
-- there. Entries are written at once, and `log` keeps what was there before, for `undo`. The row, with the hold
-- inside it, `inner`, is written last.
local Book = {}
Book.__index = Book

local INDEX = {hold = 'ends', waiter = 'due', tombstone = 'due'} -- where the end of each is

local function open_book(key, raw)
  local book = setmetatable({
    key = key, raw = raw, last = 0, capacity = 0, arrivals = 0, used = 0, hold = 0, waiter = 0, tombstone = 0,
    due = INFINITY, horizon = 0, doubt = 0, taken = '', known = {}, raws = {}, log = {}, front = {},
  }, Book)
  if raw then
    local sign, format, inside, at
    sign, format, inside, book.last, book.capacity, book.arrivals, book.used, book.hold, book.waiter, book.tombstone,
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

function Book:is_short() -- there is nothing but the row
  return self.hold + self.waiter + self.tombstone == 0
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

-- The first `count` of these entries of the hash and the hold inside, in the order of their ends and ids.
function Book:first_of(ids, count)
  local found = self:get_all(ids)
  found[#found + 1] = self.inner
  table.sort(found, function(one, other)
    return one.expires < other.expires or one.expires == other.expires and one.id < other.id
  end)
  for i = #found, count + 1, -1 do
    found[i] = nil
  end
  return found
end

-- The holds that time ends first.
function Book:first_to_end(count)
  local stored = math.min(count, self.hold)
  local ids = stored > 0 and redis.call('ZRANGE', self.key .. 'ends', 0, stored - 1) or {}
  if #ids ~= stored then corrupt('the holds are not as many as they should be') end
  return self:first_of(ids, count)
end

-- A short sorted set keeps its scores as texts, and whole numbers are the quickest to read and write.
local function score_of(time)
  return math.floor(time * 1e6)
end

-- The first `most` entries whose time is over. The next one, or an earlier moment, is noted as `due`.
function Book:ended(now, most)
  if now < self.due then return {} end
  local ids = {}
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
  local found = self:first_of(ids, most + 1)
  for i = #found, 1, -1 do
    if found[i].expires > now or i > most then
      self.due = math.min(self.due, math.max(found[i].expires, now))
      found[i] = nil
    end
  end
  return found
end

-- The queue: waiters by priority, then by arrival.

local function urgency(waiter)
  return 0 - waiter.priority -- never minus zero
end

local function member_of(waiter)
  return string.format('%016.0f', waiter.arrival) .. waiter.id
end

-- The n-th waiter, first come first; nil behind the last. `front` has the first waiters, as far as they were read.
function Book:nth_waiter(n)
  local front = self.front
  while n > #front and #front < self.waiter do
    local to = math.min(#front + (#front == 0 and FRONT_READ or MORE_READ), self.waiter)
    local ids = redis.call('ZRANGE', self.key .. 'queue', #front, to - 1)
    if #front + #ids ~= to then corrupt('the queue is not as long as it should be') end
    for i, member in ipairs(ids) do
      ids[i] = string.sub(member, 17)
    end
    for _, waiter in ipairs(self:get_all(ids)) do
      front[#front + 1] = waiter
    end
  end
  return front[n]
end

-- How many waiters are before one of the queue, or before one that is about to join it.
function Book:ahead_of(waiter)
  local queue, ahead = self.key .. 'queue', 0
  if self.known[waiter.id] == waiter then
    ahead = redis.call('ZRANK', queue, member_of(waiter)) or corrupt('a waiter is not in the queue')
  elseif self.waiter > 0 then
    ahead = redis.call('ZCOUNT', queue, '-inf', urgency(waiter))
  end
  return math.min(ahead, COUNTED_POSITIONS)
end

-- Write an entry of the hash, or remove it (`entry` is false).
function Book:write(id, entry)
  local key, old = self.key, self.known[id]
  self.log[#self.log + 1] = {id, self.raws[id]}
  self.known[id], self.raws[id] = entry, entry and packed(entry) or nil
  if old and old ~= entry then
    if not entry then
      redis.call('HDEL', key .. 'entry', id)
    end
    if not entry or INDEX[entry.kind] ~= INDEX[old.kind] then
      redis.call('ZREM', key .. INDEX[old.kind], id)
    end
    if old.kind == 'waiter' then
      redis.call('ZREM', key .. 'queue', member_of(old))
      self.front = {}
    end
  end
  if entry then
    redis.call('HSET', key .. 'entry', id, self.raws[id])
    redis.call('ZADD', key .. INDEX[entry.kind], score_of(entry.expires), id)
    if entry.kind == 'waiter' and old ~= entry then
      redis.call('ZADD', key .. 'queue', urgency(entry), member_of(entry))
      self.front = {}
    end
  end
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
  -- What a revoked or unclaimed hold leaves for TOMBSTONE_TTL is within the day that `lifetime` adds.
  local over = entry.expires + (entry.lock_delay or 0) + (entry.tombstone or 0)
  if over > self.horizon then
    self.horizon = over + SLACK
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
function Book:flush(call)
  if self:is_short() and not self.inner then
    self.due, self.horizon, self.doubt = INFINITY, 0, 0
  end
  local milliseconds = lifetime(self.horizon - call.now, self.last, call.stamp)
  if (self.is_further or self.last > call.stamp) and not self:is_short() then -- a far token keeps all of it
    for _, suffix in ipairs({'entry', 'ends', 'due', 'queue'}) do
      redis.call('PEXPIRE', self.key .. suffix, milliseconds)
    end
  end
  if self.inner and not self.inner_raw then
    self.inside, self.inner_raw = 1, packed(self.inner)
  end
  local row = struct.pack(ROW, 'DI', FORMAT, self.inner and self.inside or 0, self.last, self.capacity, self.arrivals,
    self.used, self.hold, self.waiter, self.tombstone, self.due, self.horizon, self.doubt, #self.taken, self.taken)
  row = row .. (self.inner and self.inner_raw or '')
  if row ~= self.raw and (self.raw or self.capacity > 0 or not self:is_short()) then -- a look writes nothing
    redis.call('SET', self.key, row, 'PX', milliseconds)
    self.raw = row
  end
  self.log, self.is_further = {}, nil
end

-- ---- a call ----------------------------------------------------------------------------------------

-- Of the whole call are `now`, `stamp`, `notifications` and `closed_for` (seconds in which nothing is granted yet).
-- Of one command are `book`, `caller` (the id that is answered, so it needs no notification), `steps` (how many
-- entries it may still end, and waiters grant or refuse), and `units_free_in` (seconds until time frees units that
-- it granted, perhaps to the dead, or retained).

-- core/proof.py, by SHA-1.
local function proof_of(key, hold, granted_at)
  local name = string.sub(key, 7, -2) -- of dibs:{name}, escaped as in ledger.py
  name = name == '%' and '' or string.gsub(string.gsub(name, '%%7D', '}'), '%%25', '%%')
  return redis.sha1hex(struct.pack('>dddd', hold.token, granted_at, hold.ttl, #name) .. name
    .. table.concat(hold.slots, ',') .. hold.id)
end

-- Notify the owner of an entry.
local function notify(call, entry, event, detail)
  local is_grant = event == 'granted'
  if entry.id ~= call.caller then
    table.insert(call.notifications, {
      key = call.book.key, inbox = entry.inbox, lease = entry.lease, is_head = event == 'head',
      list = {
        'notification', entry.lease, event, is_grant and entry.token or 0, is_grant and entry.slots or {}, call.now,
        is_grant and entry.ttl or 0, detail or '', is_grant and proof_of(call.book.key, entry, call.now) or '',
      },
    })
  end
end

-- It missed its heartbeats, its time is over, or it was not heard of since `doubt`, a token that nobody claimed.
local function is_passed_over(call, waiter, doubt)
  local heard = waiter.expires - waiter.ttl
  return waiter.expires <= call.now or call.now - heard > waiter.silence or waiter.seen < doubt
end

-- How many of the first `most` waiters are passed over, all before the first one that is not.
local function count_passed_over(call, most, doubt)
  for n = 1, most do
    if not is_passed_over(call, call.book:nth_waiter(n), doubt) then return n - 1 end
  end
  return most
end

-- There is no room for so many units more, or for one more lease.
local function is_full(book, units)
  return book.used + units > book.capacity or book:holding() >= MAX_HOLDERS
end

-- There is room, and all waiters that are looked at are passed over. A try passes only those that missed a heartbeat:
-- others that are in doubt may live.
local function fits(call, units, is_try)
  local book = call.book
  local examined = math.min(book.waiter, EXAMINED_POSITIONS)
  return not is_full(book, units) and count_passed_over(call, examined, is_try and 0 or book.doubt) == examined
end

local function take_token(call, floor)
  call.book.last = next_token(call.book.last, call.stamp, floor)
  return call.book.last
end

-- Those of `own` and the lowest free slots; none where units aren't numbered.
local function slots_for(book, units, own)
  return book.capacity > MAX_SLOTS and {} or free_slots(book.taken, own, units)
end

-- Let an entry live `ttl` longer from now, or as long as it would anyway; return how long.
local function extend(call, entry, ttl)
  local left = math.max(ttl, math.min(entry.expires - call.now, entry.ttl))
  entry.ttl = left
  entry.expires = call.now + left
  call.book:put(entry)
  return left
end

-- A hold of what an Acquire or a waiter asks for.
local function hold_for(asked, call, state, ttl)
  local token = take_token(call, asked.floor)
  return changed(asked, {
    kind = 'hold', state = state, expires = call.now + ttl, ttl = ttl, token = token,
    slots = slots_for(call.book, asked.units, {}), seq = 0,
    tombstone = 0, since = call.stamp, detail = '',
  })
end

-- The units of a hold that is over stay taken, by nobody.
local function retain(call, hold, seconds, tombstone)
  call.book:put(changed(hold, {
    state = 'retained', expires = call.now + seconds, ttl = seconds, seq = 0, lock_delay = 0, tombstone = tombstone,
    lease = '', owner = '', detail = '', inbox = '', address = '', trace = '',
  }))
end

-- Remember that an id has ended.
local function set_tombstone(call, id, seconds, reason, detail)
  call.book:put({
    kind = 'tombstone', id = id, expires = call.now + seconds, ttl = seconds, reason = reason, detail = detail or '',
  })
end

-- An entry's time is over; what follows counts from then, however late we look.
local function expire(call, entry)
  local book, late = call.book, call.now - entry.expires
  if entry.kind ~= 'hold' then return book:remove(entry) end
  -- The owner may not know, and ask again.
  local ends_its_id = entry.state == 'unclaimed' or entry.state == 'revoked'
  if entry.state == 'unclaimed' then
    book.doubt = math.max(book.doubt, entry.token)
  end
  local tombstone = ends_its_id and TOMBSTONE_TTL or entry.tombstone
  if entry.state ~= 'retained' and entry.lock_delay > late then
    call.units_free_in = math.min(call.units_free_in, entry.lock_delay - late)
    retain(call, entry, entry.lock_delay - late, ends_its_id and TOMBSTONE_TTL or 0)
  elseif tombstone > late then
    set_tombstone(call, entry.id, tombstone - late, ends_its_id and entry.state or 'released', entry.detail)
  else
    book:remove(entry)
  end
end

-- The waiter becomes a hold, which its owner must claim within the claim timeout.
local function grant_waiter(call, waiter)
  local timeout = claim_timeout(waiter.grant_ttl)
  local hold = hold_for(waiter, call, 'unclaimed', timeout)
  call.book:put(hold)
  call.units_free_in = math.min(call.units_free_in, timeout)
  notify(call, hold, 'granted')
end

-- Grant the first waiter that is not passed over, if it fits; tell whether to look again.
local function grant_next(call)
  local book = call.book
  for n = 1, math.min(book.waiter, EXAMINED_POSITIONS) do
    local waiter = book:nth_waiter(n)
    if waiter.units > book.capacity then -- which has shrunk below what this waiter asks for
      set_tombstone(call, waiter.id, TOMBSTONE_TTL, 'too_large')
      notify(call, waiter, 'refused')
      return true
    elseif is_full(book, 1) then
      return false
    elseif not is_passed_over(call, waiter, book.doubt) then
      if book.used + waiter.units > book.capacity then return false end
      grant_waiter(call, waiter)
      return true
    end
  end
  return false
end

-- End what time has ended, then grant the head of the queue while it fits: as far as STEPS go. What the caller
-- itself has ends in any case.
local function settle(call)
  local book = call.book
  for _, entry in ipairs(call.steps > 0 and book:ended(call.now, call.steps) or {}) do
    expire(call, entry)
    call.steps = call.steps - 1
  end
  local own = call.steps == 0 and call.caller and book:get(call.caller)
  if own and own.expires <= call.now then
    expire(call, own)
  end
  while call.steps > 0 and book.waiter > 0 and call.closed_for == 0 and grant_next(call) do
    call.steps = call.steps - 1
  end
end

-- The hold is its owner's for `ttl` from now.
local function claim(call, hold, ttl)
  hold.state = 'held'
  return {'granted', hold.token, hold.slots, extend(call, hold, ttl)}
end

-- When a waiter should send its next heartbeat: at once where STEPS ran out.
local function next_heartbeat_in(call, waiter, ahead)
  local timeout, often = claim_timeout(waiter.grant_ttl), claim_timeout(waiter.grant_ttl) / 3
  local is_front = waiter.silence == timeout
  if call.steps == 0 then
    return 0
  elseif is_front and ahead > 0 then
    return often
  end
  local free_in = timeout
  if call.book.due < call.now + timeout then -- else nothing ends by then
    local first = call.book:first_to_end(1)[1]
    free_in = first and math.max(first.expires - call.now, 0) or INFINITY
  end
  return is_front and math.min(often, free_in)
    or math.min(waiter.ttl / 3, call.units_free_in, timeout + math.min(timeout, free_in))
end

-- A heartbeat: the waiter lives. It may be granted at once, and needs no notification then.
-- Returns nothing where it asks for more than there is.
local function heartbeat(call, waiter, ttl)
  local book = call.book
  if waiter.units > book.capacity then
    return set_tombstone(call, waiter.id, TOMBSTONE_TTL, 'too_large')
  end
  local ahead, timeout = book:ahead_of(waiter), claim_timeout(waiter.grant_ttl)
  local examined = math.min(ahead, EXAMINED_POSITIONS)
  local is_front = ahead < HEARTBEAT_POSITIONS
    or ahead - count_passed_over(call, examined, book.doubt) < HEARTBEAT_POSITIONS
  waiter.silence = is_front and timeout or 3 * timeout
  waiter.seen = book.last
  extend(call, waiter, waiter.ttl)
  local waiting = book.waiter
  settle(call)
  if book:get(waiter.id) == waiter and call.closed_for == 0 and fits(call, waiter.units) then
    grant_waiter(call, waiter) -- from beyond what `settle` looks at
  end
  local entry = book:get(waiter.id)
  if entry and entry.kind == 'hold' then return claim(call, entry, ttl) end
  ahead = book.waiter ~= waiting and book:ahead_of(waiter) or ahead
  return {'queued', ahead, next_heartbeat_in(call, waiter, ahead), call.now}
end

local function age(call, since)
  return math.max(call.stamp - since, 0) / 1e6
end

-- Holds, as others may see them: never with their ids.
local function shown(call, holds)
  local list = {}
  for i, hold in ipairs(holds) do
    list[i] = {
      hold.lease, hold.owner, hold.token, hold.units, hold.slots, age(call, hold.since),
      math.max(hold.expires - call.now, 0), hold.note, hold.state, hold.address, hold.trace,
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

-- Not now: who besides `own` is in the way, and when time alone could change that: at once where STEPS ran out.
local function refuse(call, own)
  local holds, is_closed, again = {}, not own, own and 0 or MAX_CLAIM_TIMEOUT
  for _, hold in ipairs(call.book:first_to_end(HOLDERS_NAMED + (own and 1 or 0))) do
    if hold ~= own and #holds < HOLDERS_NAMED then
      holds[#holds + 1] = hold
      is_closed = is_closed and hold.state == 'retained'
    end
  end
  if holds[1] then
    again = math.max(holds[1].expires - call.now, 0)
  end
  again = not own and call.steps == 0 and 0 or again
  return refused(is_closed and holds[1] and 'closed' or 'held', shown(call, holds), again)
end

local Rules = {}

function Rules.acquire(call, command)
  local book = call.book
  local entry = book:get(command.id)
  if entry then -- a repeat renews a living hold, keeps a waiter alive, and never revives what has ended
    if entry.reason == 'too_large' then
      return refused('too_large')
    elseif entry.kind == 'tombstone' or entry.state == 'retained' or entry.state == 'revoked' then
      return {'gone'}
    end
    entry.inbox = command.inbox -- its owner may have reconnected
    if entry.kind == 'hold' then return claim(call, entry, command.ttl) end
    return heartbeat(call, entry, command.ttl) or refused('too_large')
  elseif command.units > command.capacity then
    return refused('too_large')
  elseif call.closed_for > 0 then
    return refused('closed', nil, call.closed_for)
  end
  book.capacity = command.capacity
  if book.waiter > 0 then
    settle(call) -- a greater capacity lets the queue in first
  end
  if fits(call, command.units, not command.queue) then
    local hold = hold_for(command, call, 'held', command.ttl)
    book:put(hold)
    return {'granted', hold.token, hold.slots, hold.ttl}
  elseif not command.queue then
    return refuse(call)
  end
  book.arrivals = book.arrivals + 1
  return heartbeat(call, changed(command, {
    kind = 'waiter', expires = call.now + command.waiter_ttl, ttl = command.waiter_ttl, grant_ttl = command.ttl,
    arrival = book.arrivals, since = call.stamp,
  }), command.ttl)
end

function Rules.renew(call, command)
  local entry = call.book:get(command.id)
  if not entry then
    return lost()
  elseif command.inbox ~= '' and entry.kind ~= 'tombstone' then
    entry.inbox = command.inbox
    call.book:put(entry)
  end
  if entry.state == 'held' then
    return {'renewed', extend(call, entry, command.ttl)}
  elseif entry.state == 'unclaimed' then
    return claim(call, entry, command.ttl)
  elseif entry.kind == 'waiter' then
    return heartbeat(call, entry, command.ttl) or lost('expired', 'too large')
  elseif entry.state == 'revoked' or entry.reason == 'revoked' then
    return lost('revoked', entry.detail)
  end
  return lost()
end

function Rules.release(call, command)
  local book, entry = call.book, call.book:get(command.id)
  local is_over = not entry or entry.kind == 'tombstone'
  if entry and entry.state == 'retained' then -- a repeat never extends it
    entry.tombstone = math.max(entry.tombstone, command.tombstone)
    book:put(entry)
  elseif entry and entry.kind == 'hold' and command.retain > 0 then
    retain(call, entry, command.retain, command.tombstone)
  elseif entry and is_over and command.tombstone > 0 then
    extend(call, entry, command.tombstone) -- its Acquire may have been sent again since
  elseif command.tombstone > 0 then
    set_tombstone(call, command.id, command.tombstone, 'released')
  elseif not is_over then
    book:remove(entry)
  end
  return {is_over and 'unknown' or 'released'}
end

function Rules.resize(call, command)
  local hold = call.book:get(command.id)
  if not hold or hold.kind ~= 'hold' or hold.state == 'retained' then
    return lost()
  elseif hold.state == 'revoked' then
    return lost('revoked', hold.detail)
  end
  hold.state = 'held' -- a command from its owner claims it
  local left = extend(call, hold, 0)
  local book, grows = call.book, command.units > hold.units
  if command.seq > hold.seq then
    hold.seq = command.seq -- also of what is refused: its late copy must not succeed
    book:put(hold)
    if not grows or book.used - hold.units + command.units <= book.capacity and call.closed_for == 0 then
      -- Growing ignores the queue: who holds on would otherwise wait for those who wait for it.
      local stay = math.min(command.units, #hold.slots)
      local slots = grows and slots_for(book, command.units, hold.slots) or {unpack(hold.slots, 1, stay)}
      book:remove(hold)
      hold.token = grows and take_token(call, 0) or hold.token -- more units are a new grant
      hold.units, hold.slots = command.units, slots
      book:put(hold)
    end
  end
  if command.seq ~= hold.seq or command.units == hold.units then
    return {'granted', hold.token, hold.slots, left}
  elseif command.units > book.capacity then
    return refused('too_large')
  end
  return call.closed_for > 0 and refused('closed', nil, call.closed_for) or refuse(call, hold)
end

function Rules.revoke(call, command)
  local count, ends_in = 0, 0
  for _, hold in ipairs(call.book:first_to_end(MAX_HOLDERS)) do
    if hold.state ~= 'retained' and (not command.lease or command.lease == hold.lease) then
      count = count + 1
      notify(call, hold, 'revoked', command.reason)
      if command.now then
        set_tombstone(call, hold.id, TOMBSTONE_TTL, 'revoked', command.reason)
      else
        hold.state = 'revoked'
        hold.detail = command.reason
        call.book:put(hold)
        ends_in = math.max(ends_in, hold.expires - call.now)
      end
    end
  end
  return {'revoked', count, ends_in}
end

function Rules.inspect(call)
  local book, waiters, holds = call.book, {}, call.book:first_to_end(HOLDERS_SHOWN)
  table.sort(holds, function(one, other)
    return one.token < other.token
  end)
  for n = 1, math.min(book.waiter, WAITERS_SHOWN) do
    local waiter = book:nth_waiter(n)
    waiters[n] = {
      waiter.lease, waiter.owner, waiter.units, waiter.priority, age(call, waiter.since), waiter.note,
      waiter.address, waiter.trace,
    }
  end
  return {
    'status', book.capacity, shown(call, holds), waiters, book.waiter, book.last, book:holding(), book.used,
  }
end

-- ---- a batch --------------------------------------------------------------------------------------

-- A mutex that nobody else holds or wants is granted and released here, without a book, which costs more than
-- all the rest. The reply is a number: the token of the grant, or 0 for the release. Nothing is done, and
-- nothing returned, where anything is unusual.
local function apply_alone(call, list, key, raw, argument)
  local name, id, ttl, units, capacity, floor, lock_delay =
    list[1], list[2], list[4], list[5], list[6], list[11], list[12]
  local sign, format, inside, last, arrivals, outside, due, hold_at = 'DI', FORMAT, 0, 0, 0, 0, 0, 0
  if raw then
    local holds, waiters, tombstones, _
    sign, format, inside, last, _, arrivals, _, holds, waiters, tombstones, due, _, _, _, hold_at =
      struct.unpack(ROW, raw)
    outside = holds + waiters + tombstones
  end
  if sign ~= 'DI' or format ~= FORMAT or outside > 0 or call.closed_for > 0 then
    return nil
  elseif name == 'acquire' and inside == 0 and units == 1 and capacity == 1 then
    local ends = call.now + ttl
    last = next_token(last, call.stamp, floor)
    local row = struct.pack(ROW, 'DI', FORMAT, 2, last, 1, arrivals, 1, 0, 0, 0, ends, ends + lock_delay, 0, 1, '\1')
      .. struct.pack(PLAIN, last, ends, call.stamp) .. argument
    redis.call('SET', key, row, 'PX', lifetime(ttl + lock_delay, last, call.stamp))
    return last, row
  elseif name == 'release' and inside == 2 and list[3] == 0 and list[4] == 0 and call.now < due then
    local begins, from = ACQUIRED_BY .. cmsgpack.pack(id), hold_at + struct.size(PLAIN)
    if string.sub(raw, from, from + #begins - 1) == begins then
      local row = struct.pack(ROW, 'DI', FORMAT, 0, last, 1, arrivals, 0, 0, 0, 0, INFINITY, 0, 0, 0, '')
      redis.call('SET', key, row, 'PX', lifetime(0, last, call.stamp))
      return 0, row
    end
  end
end

-- The reply to one command. Books stay open for later commands of the batch.
local function apply(call, key, argument)
  local list, raw = cmsgpack.unpack(argument), call.rows[key]
  if list[1] == 'invalid' then
    return cmsgpack.pack({'failed', 'invalid', list[2]})
  elseif type(raw) == 'table' then
    error(raw) -- what GET has answered
  end
  if not call.books[key] then
    local reply, row = apply_alone(call, list, key, raw, argument)
    if reply then
      call.rows[key] = row
      return reply
    end
    call.books[key] = open_book(key, raw)
  end
  local book, command, steps = call.books[key], named(list), math.max(math.min(call.steps_left, STEPS), LEAST_STEPS)
  call.book, call.caller, call.steps, call.units_free_in = book, command.id, steps, INFINITY
  local head = book:nth_waiter(1)
  settle(call)
  local reply = Rules[command.kind](call, command)
  settle(call)
  local new_head = book:nth_waiter(1)
  if new_head and not (head and head.id == new_head.id) then
    notify(call, new_head, 'head') -- it must learn when time alone could change its answer
  end
  book:flush(call)
  call.steps_left = call.steps_left - (steps - call.steps)
  return cmsgpack.pack(reply)
end

-- Where a text has one of these words first, if it does.
local function find_any(text, words)
  for _, word in ipairs(words) do
    local at = string.find(text, word, 1, true)
    if at then return at end
  end
end

-- Redis refuses these at the first write of a script, so nothing of the batch has been done.
local OF_ALL = {'OOM ', 'MISCONF ', 'READONLY ', 'NOREPLICAS '}
-- How servers say that an ACL is in the way.
local FORBIDDEN = {'NOPERM', 'ACL failure', 'The user executing the script'}

-- What a failed command is answered. Nothing is left of it, and later ones go on from what Redis has.
local function failed(call, key, problem, noted)
  local book = call.books[key]
  if book then
    book:undo()
    call.rows[key], call.books[key] = book.raw, nil
  end
  for n = #call.notifications, noted + 1, -1 do
    call.notifications[n] = nil
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
  local heads, notified = {}, {}
  for n = #notifications, 1, -1 do
    local each = notifications[n]
    each.is_old = each.is_head and (heads[each.key] or notified[each.lease])
    heads[each.key], notified[each.lease] = heads[each.key] or each.is_head, true
  end
  for _, each in ipairs(notifications) do
    local payload = struct.pack('>c2BIc0', 'DI', FORMAT, #each.key, each.key) .. cmsgpack.pack(each.list)
    if each.is_old or each.inbox == '' then
      -- for nobody
    elseif each.inbox == inbox then
      answer[#answer + 1] = payload
    else
      redis.pcall('PUBLISH', each.inbox, payload) -- a hint: it may fail
    end
  end
end

local function apply_batch(keys, arguments)
  local terms = arguments[#keys + 2] and cmsgpack.unpack(arguments[#keys + 2]) or {}
  local call = {
    now = terms[1], stamp = terms[2], closed_for = 0, steps_left = BATCH_STEPS,
    books = {}, rows = {}, notifications = {},
  }
  if not call.now then
    local time = redis.call('TIME')
    call.stamp = time[1] * 1000000 + time[2]
    call.now = call.stamp / 1000000
  end
  for i, raw in ipairs(redis.call('MGET', unpack(keys))) do
    local key = keys[i]
    raw = raw or redis.pcall('GET', key) -- which tells a missing key from one of another type
    call.rows[key] = raw
    local format = type(raw) == 'string' and string.sub(raw, 1, 2) == 'DI' and string.byte(raw, 3)
    if format and format ~= FORMAT then
      return redis.error_reply('DIBSFORMAT this server has leases of format ' .. format
        .. ', and this release of dibs reads format ' .. FORMAT
        .. ': nothing is granted; run the same release everywhere on it')
    end
  end
  call.closed_for = terms[3] and seconds_closed(call.now, terms[3]) or 0
  local answer = {}
  for i, key in ipairs(keys) do
    local noted = #call.notifications
    local ok, reply = pcall(apply, call, key, arguments[i + 1])
    if not ok then
      local problem = type(reply) == 'table' and reply.err or tostring(reply)
      local of_all = find_any(problem, OF_ALL)
      if of_all then
        return redis.error_reply(string.sub(problem, of_all)) -- Redis 6 puts a position in the script before it
      end
      reply = failed(call, key, problem, noted)
    end
    answer[i] = reply
  end
  if #call.notifications > 0 then
    send(call.notifications, arguments[1], answer)
  end
  return answer
end
