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

-- The places, first come first. One command brings at most one new place, which Redis does not have yet.
function Book:queue()
  local n = 0
  local newcomer = self.newcomer
  if newcomer and self.known[newcomer.id] ~= newcomer then
    newcomer = nil
  end
  return function()
    local place
    repeat
      n = n + 1
      place = self:stored_place(n)
    until place ~= false
    if newcomer and (not place or is_before(newcomer, place)) then
      n, place, newcomer = n - 1, newcomer, nil
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

function Book:ahead_of(place)
  if self.places_stored == 0 then
    return 0
  end
  local ahead
  if place == self.newcomer then
    ahead = redis.call('ZCOUNT', self.key .. 'queue', '-inf', urgency(place))
  else
    ahead = redis.call('ZRANK', self.key .. 'queue', member_of(place))
    if not ahead then
      corrupt('a place is not in the queue')
    end
  end
  for id, old in pairs(self.stored) do
    local has_gone = old and old.kind == 'place' and self.known[id] ~= old
    if has_gone and is_before(old, place) then
      ahead = ahead - 1
    end
  end
  return ahead
end
