-- core/book.py: the book of one key, kept in Redis and read no further than the ledger looks.
--
-- The row of the key (a string) counts what there is and carries one hold inside, so a lock that nobody
-- else wants is one GET and one SET. What is outside of the row has the key's name and a suffix:
--
--   hold, place, tomb   hashes: the other holds, the places, the tombs, by id
--   queue               a sorted set: the places, by minus the priority, then by arrival
--   ends                a sorted set: when each of these holds ends, in whole microseconds, rounded down
--   due                 the same of the places and tombs
--
-- Nothing is written before `flush`, so a command that fails has done nothing. Until then `known` has the
-- outer entries as they should be (false: none), and `stored`, for those that were changed, what Redis
-- has (false: nothing).

local KINDS = {'hold', 'place', 'tomb'}
local ENDS = {'ends', 'due'}
local DUE = {hold = 'ends', place = 'due', tomb = 'due'} -- where the end of each is
local CHUNK = 1000 -- arguments of one call
local NONE = {}

local Book = {} -- `hold`, `place` and `tomb` of one say how many it has outside of its row
Book.__index = Book

-- When nothing that follows from an entry can matter any more; what a revoked or unclaimed hold leaves
-- for BURIAL is within the day.
local function over(entry)
  return entry.expires + (entry.lock_delay or 0) + (entry.bury or 0)
end

function Book:is_simple()
  return self.hold == 0 and self.place == 0 and self.tomb == 0
end

function Book.open(key, raw)
  local magic, format, parts, last, capacity, arrivals, at = struct.unpack(ROW, raw)
  if magic ~= 'DI' or format ~= FORMAT or parts > INNER + OUTER + TAKEN then
    corrupt('this is no row of a book')
  end
  local has_taken = parts >= TAKEN
  if has_taken then
    parts = parts - TAKEN
  end
  local book = setmetatable({
    key = key, raw = raw, last = last, capacity = capacity, arrivals = arrivals, used = 0,
    hold = 0, place = 0, tomb = 0, due = INFINITY, horizon = 0, doubt = 0,
    known = {}, stored = {}, was_simple = parts < OUTER,
    holds_stored = 0, places_stored = 0, tombs_stored = 0, front = {}, gone = 0,
    newcomers = {}, leavers = {},
  }, Book)
  if parts >= OUTER then
    book.used, book.hold, book.place, book.tomb, book.due, book.horizon, book.doubt, at =
      struct.unpack(COUNTS, raw, at)
    book.holds_stored, book.places_stored, book.tombs_stored = book.hold, book.place, book.tomb
  end
  if has_taken then
    book.taken, at = struct.unpack('<Ic0', raw, at)
  end
  if parts == INNER or parts == INNER + OUTER then
    local inner
    inner, at = Read.hold(raw, at)
    book.inner = inner
    if parts == INNER then
      book.used, book.due, book.horizon = inner.units, inner.expires, over(inner)
    end
  end
  if at ~= #raw + 1 then
    corrupt('the row of a book has an end of its own')
  end
  return book
end

-- ---- entries -------------------------------------------------------------------------------------

function Book:read_entry(id)
  for _, kind in ipairs(KINDS) do
    local raw = self[kind] > 0 and redis.call('HGET', self.key .. kind, id)
    if raw then
      return entry_of(kind, id, raw)
    end
  end
  return false
end

function Book:get(id)
  local inner = self.inner
  if inner and inner.id == id then
    return inner
  end
  local entry = self.known[id]
  if entry == nil then
    entry = not self.was_simple and self:read_entry(id)
    self.known[id] = entry
  end
  return entry or nil
end

-- Read the entries of one kind that these ids have.
function Book:read_entries(kind, ids)
  local unknown = {}
  for _, id in ipairs(ids) do
    if self.known[id] == nil then
      unknown[#unknown + 1] = id
    end
  end
  for from = 1, #unknown, CHUNK do
    local to = math.min(from + CHUNK - 1, #unknown)
    local rows = redis.call('HMGET', self.key .. kind, unpack(unknown, from, to))
    for i = from, to do
      self.known[unknown[i]] = entry_of(kind, unknown[i], rows[i - from + 1])
    end
  end
end

function Book:read_holds()
  local rows = redis.call('HGETALL', self.key .. 'hold')
  if #rows ~= 2 * self.holds_stored then
    corrupt('the holds are not as many as they should be')
  end
  for i = 1, #rows, 2 do
    if self.known[rows[i]] == nil then
      self.known[rows[i]] = entry_of('hold', rows[i], rows[i + 1])
    end
  end
  self.holds_read = true
end

function Book:holds()
  local found = {self.inner}
  if self.hold > 0 then
    if self.holds_stored > 0 and not self.holds_read then
      self:read_holds()
    end
    for _, entry in pairs(self.known) do
      if entry and entry.kind == 'hold' then
        found[#found + 1] = entry
      end
    end
  end
  return found
end

local function ends_before(one, other)
  return one.expires < other.expires or one.expires == other.expires and one.id < other.id
end

-- Those that have changed, of which Redis does not know yet, and how many entries have.
function Book:changed_holds()
  local found, count = {self.inner}, 0
  for id in pairs(self.stored) do
    local entry = self.known[id]
    if entry and entry.kind == 'hold' then
      found[#found + 1] = entry
    end
    count = count + 1
  end
  return found, count
end

-- The holds that time ends first; those that end at the same time, in the order of their ids.
function Book:first_to_end(count)
  local found, changed = self:changed_holds()
  if self.holds_stored > 0 then
    local ids = redis.call('ZRANGE', self.key .. 'ends', 0, count + changed - 1)
    if #ids ~= math.min(count + changed, self.holds_stored) then
      corrupt('the holds are not as many as they should be')
    end
    for i, member in ipairs(ids) do
      ids[i] = string.sub(member, 6)
    end
    self:read_entries('hold', ids)
    for _, id in ipairs(ids) do
      if self.stored[id] == nil then
        found[#found + 1] = self.known[id] or corrupt('a hold is missing')
      end
    end
  end
  table.sort(found, ends_before)
  for i = #found, count + 1, -1 do
    found[i] = nil
  end
  return found
end

function Book:first_release()
  local first = self:first_to_end(1)[1]
  return first and first.expires or INFINITY
end

function Book:holding()
  return self.hold + (self.inner and 1 or 0)
end

-- ---- what has ended ------------------------------------------------------------------------------

-- A short sorted set keeps its scores as texts, and whole numbers are the quickest to read and write.
local function due_of(expires)
  return math.floor(expires * 1e6)
end

function Book:read_ended(now, most)
  local ids = {hold = {}, place = {}, tomb = {}}
  for _, suffix in ipairs(ENDS) do
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', self.key .. suffix, '-inf', due_of(now), 'LIMIT', 0, most)) do
      local kind, id = string.match(member, '^(%l+) (.*)$')
      local of_kind = ids[kind] or corrupt('an entry is of no kind')
      of_kind[#of_kind + 1] = id
    end
  end
  local found = {}
  for kind, of_kind in pairs(ids) do
    self:read_entries(kind, of_kind)
    for _, id in ipairs(of_kind) do
      found[id] = true
    end
  end
  return found
end

-- The first `most` entries whose time is over, in the order of their ends and ids.
function Book:ended(now, most)
  if now < self.due then
    return NONE
  end
  local found = {}
  self.due = INFINITY
  local function look_at(entry)
    if entry.expires <= now then
      found[#found + 1] = entry
    elseif entry.expires < self.due then
      self.due = entry.expires
    end
  end
  if self.inner then
    look_at(self.inner)
  end
  local ids = {}
  if not self.was_simple then
    local _, changed = self:changed_holds()
    ids = self:read_ended(now, most + 1 + changed)
    local after = '(' .. string.format('%.17g', due_of(now))
    for _, suffix in ipairs(ENDS) do
      local later = redis.call('ZRANGEBYSCORE', self.key .. suffix, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      local due = (tonumber(later[2]) or INFINITY) - 1 -- a look too early costs nothing
      self.due = math.min(self.due, due / 1e6)
    end
  end
  for id in pairs(self.stored) do
    ids[id] = true
  end
  for id in pairs(ids) do
    if self.known[id] then
      look_at(self.known[id])
    end
  end
  table.sort(found, ends_before)
  for i = #found, most + 1, -1 do
    self.due = found[i].expires
    found[i] = nil
  end
  return found
end

-- ---- changes -------------------------------------------------------------------------------------

function Book:remove(entry)
  self.known[entry.id] = false
  if entry.kind == 'hold' then
    self.used = self.used - entry.units
    self:mark_slots(entry, false)
    if entry == self.inner then
      self.inner = nil
      return
    end
  elseif entry.kind == 'place' then
    self:note_leaver(entry)
  end
  self[entry.kind] = self[entry.kind] - 1
  if self.stored[entry.id] == nil then
    self.stored[entry.id] = entry
  end
end

function Book:put(entry)
  self.due = math.min(self.due, entry.expires)
  local end_of_it = over(entry)
  if end_of_it > self.horizon then
    self.horizon = end_of_it + SLACK
    self.is_further = true
  end
  if entry == self.inner then
    return
  end
  local old = self:get(entry.id)
  if old == entry then
    if self.stored[entry.id] == nil then
      self.stored[entry.id] = entry
    end
    return
  end
  if old then
    self:remove(old)
  end
  if entry.kind == 'hold' then
    self.used = self.used + entry.units
    self:mark_slots(entry, true)
    if not self.inner then
      self.inner = entry
      return
    end
  elseif entry.kind == 'place' then
    self:note_newcomer(entry)
  end
  self[entry.kind] = self[entry.kind] + 1
  self.known[entry.id] = entry
  if self.stored[entry.id] == nil then
    self.stored[entry.id] = false
  end
end
