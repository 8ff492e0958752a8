-- core/book.py's queue: the places of a book, by priority, then by arrival, of which no more are read than
-- the ledger looks at.

local FRONT_READ = 2 -- so many places are read at first: the head, and who is the head once that has gone
local MORE_READ = 64

local function urgency(place)
  return 0 - place.priority -- never minus zero
end

local function member_of(place)
  return string.format('%016.0f', place.arrival) .. place.id
end

local function is_before(place, other)
  if place.priority ~= other.priority then
    return place.priority > other.priority
  end
  return place.arrival < other.arrival
end

function Book:read_more()
  local from = #self.front
  local to = from + (from == 0 and FRONT_READ or MORE_READ)
  local members = redis.call('ZRANGE', self.key .. 'queue', from, to - 1)
  if from + #members ~= math.min(to, self.places_stored) then
    corrupt('the queue is not as long as it should be')
  end
  local ids = {}
  for i, member in ipairs(members) do
    ids[i] = string.sub(member, 17)
  end
  self:read_entries('place', ids)
  for i, id in ipairs(ids) do
    local place = self.known[id]
    local is_it = place and place.kind == 'place' and member_of(place) == members[i]
    self.front[from + i] = is_it and place -- false: it has gone in this very command
  end
end

-- The n-th place that Redis has; false if it has gone since, nil behind the last.
function Book:stored_place(n)
  while n > #self.front and #self.front < self.places_stored do
    self:read_more()
  end
  local place = self.front[n]
  if place and self.known[place.id] ~= place then
    return false
  end
  return place
end

-- How many of the first that Redis has have gone, for good.
function Book:gone_from_front()
  while self:stored_place(self.gone + 1) == false do
    self.gone = self.gone + 1
  end
  return self.gone
end

-- A place joins the queue, or leaves it. Redis does not know yet.
function Book:note_newcomer(place)
  local at = #self.newcomers + 1
  while at > 1 and is_before(place, self.newcomers[at - 1]) do
    at = at - 1
  end
  table.insert(self.newcomers, at, place)
  place.is_new = true
end

function Book:note_leaver(place)
  if not place.is_new then
    self.leavers[#self.leavers + 1] = place
    if not self.last_leaver or is_before(self.last_leaver, place) then
      self.last_leaver = place
    end
    return
  end
  for at, newcomer in ipairs(self.newcomers) do
    if newcomer == place then
      table.remove(self.newcomers, at)
      return
    end
  end
end

-- The places, first come first.
function Book:queue()
  local n, m = self:gone_from_front(), 0
  return function()
    local place
    repeat
      n = n + 1
      place = self:stored_place(n)
    until place ~= false
    local newcomer = self.newcomers[m + 1]
    if newcomer and (not place or is_before(newcomer, place)) then
      n, m, place = n - 1, m + 1, newcomer
    end
    return place
  end
end

function Book:first()
  if self.place == 0 then
    return nil
  end
  return self:queue()()
end

-- These are in order, and who asks has mostly come last.
function Book:newcomers_before(place)
  local count = #self.newcomers
  while count > 0 and not is_before(self.newcomers[count], place) do
    count = count - 1
  end
  return count
end

-- These are not in order, but mostly all of them were at the front.
function Book:leavers_before(place)
  if not self.last_leaver or is_before(self.last_leaver, place) then
    return #self.leavers
  end
  local count = 0
  for _, leaver in ipairs(self.leavers) do
    if is_before(leaver, place) then
      count = count + 1
    end
  end
  return count
end

function Book:stored_ahead_of(place)
  if self.places_stored == 0 then
    return 0
  elseif place.is_new then
    return redis.call('ZCOUNT', self.key .. 'queue', '-inf', urgency(place))
  end
  return redis.call('ZRANK', self.key .. 'queue', member_of(place))
    or corrupt('a place is not in the queue')
end

function Book:ahead_of(place)
  local ahead = self:stored_ahead_of(place) + self:newcomers_before(place) - self:leavers_before(place)
  return math.min(ahead, POSITIONS)
end
