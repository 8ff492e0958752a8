-- core/turn.py: one command's turn at a book: what time has changed, and the steps that several rules
-- share.

local Turn = {}
Turn.__index = Turn

local ENDS_ITS_ID = {unclaimed = 'unclaimed', revoked = 'revoked'}

-- Whoever is answered needs no push.
function Turn:wake(entry, event, hold, detail)
  if entry.id == self.caller then
    return
  end
  self.wakeups[#self.wakeups + 1] = {
    inbox = entry.inbox, lease = entry.lease, event = event, token = hold and hold.token or 0,
    slots = hold and hold.slots or '', granted_at = self.now, window = hold and hold.ttl or 0,
    detail = detail or '',
    proof = hold and proof_of(self.book.key, hold.id, hold.token, hold.slots, self.now, hold.ttl) or '',
  }
end

-- ---- units, tokens, slots ------------------------------------------------------------------------

-- Its time is over, it missed its heartbeats, or was not heard of since a grant that nobody claimed: `doubt` is its token.
function Turn:is_silent(place, doubt)
  local heard = place.expires - place.ttl
  return place.expires <= self.now or self.now - heard > place.silence or place.seen < doubt
end

-- How many of the first `most` waiters are passed over, all before the first one that is not.
function Turn:passed_over(most, doubt)
  local count = 0
  for place in self.book:queue() do
    if count == most or not self:is_silent(place, doubt) then
      return count
    end
    count = count + 1
  end
  return count
end

-- There is no room for so many units more, or for one more lease.
function Turn:is_full(units)
  local book = self.book
  return book.used + units > book.capacity or book:holding() >= MAX_HOLDERS
end

-- There is room, and all waiters in sight are passed over. A try passes only those that missed a heartbeat:
-- others that are in doubt may live.
function Turn:fits(units, is_try)
  local book = self.book
  if self:is_full(units) then
    return false
  end
  local in_sight = math.min(book.place, SIGHT)
  return in_sight == 0 or self:passed_over(in_sight, is_try and 0 or book.doubt) == in_sight
end

-- The next fencing token.
function Turn:take_token(floor)
  local token = next_token(self.book.last, self.stamp, floor)
  if token > LAST_TOKEN - 1 then
    corrupt('the fencing tokens of this key are used up') -- a double can't tell the next ones apart
  end
  self.book.last = token
  return token
end

-- `own` and the lowest free slots, `units` of them; none where units aren't numbered.
function Turn:free_slots(units, own)
  local capacity = self.book.capacity
  if capacity > MAX_SLOTS then
    return ''
  end
  if capacity == 1 then
    return SLOT_0
  end
  return self.book:free_slots(units, own)
end

-- ---- lives ---------------------------------------------------------------------------------------

-- Let an entry live `ttl` longer from now, or as long as it would anyway; return how long.
function Turn:extend(entry, ttl)
  local left = math.max(ttl, math.min(entry.expires - self.now, entry.ttl))
  entry.ttl = left
  entry.expires = self.now + left
  self.book:put(entry)
  return left
end

-- The units of a hold that is over stay taken, by nobody.
function Turn:keep(hold, seconds, bury)
  self.book:put({
    kind = 'hold', id = hold.id, lease = '', owner = '', token = hold.token, units = hold.units,
    slots = hold.slots, ttl = seconds, expires = self.now + seconds, state = 'kept', seq = 0,
    lock_delay = 0, bury = bury, since = hold.since, note = hold.note, detail = '', inbox = '',
    address = '', trace = '',
  })
end

-- Remember that an id has ended.
function Turn:bury(id, seconds, reason, detail)
  self.book:put({
    kind = 'tomb', id = id, ttl = seconds, expires = self.now + seconds, reason = reason or 'buried',
    detail = detail or '',
  })
end

-- ---- settling: what time alone has changed -------------------------------------------------------

-- An entry's time is over; what follows counts from then, however late we look.
function Turn:end_entry(entry)
  local late = self.now - entry.expires
  if entry.kind == 'hold' then
    if entry.state == 'unclaimed' then
      self.book.doubt = math.max(self.book.doubt, entry.token)
    end
    local ends_its_id = ENDS_ITS_ID[entry.state]
    if entry.state ~= 'kept' and entry.lock_delay > late then
      self.free_in = math.min(self.free_in, entry.lock_delay - late)
      return self:keep(entry, entry.lock_delay - late, ends_its_id and BURIAL or 0)
    end
    local remembered = ends_its_id and BURIAL or entry.bury
    if remembered > late then
      return self:bury(entry.id, remembered - late, ends_its_id or 'buried', entry.detail)
    end
  end
  self.book:remove(entry)
end

-- The place becomes a hold that stands for a claim window until its owner speaks.
function Turn:push_grant(place)
  local window = claim_window(place.grant_ttl)
  local hold = {
    kind = 'hold', id = place.id, lease = place.lease, owner = place.owner,
    token = self:take_token(place.floor), units = place.units,
    slots = self:free_slots(place.units, ''), ttl = window, expires = self.now + window,
    state = 'unclaimed', seq = 0, lock_delay = place.lock_delay, bury = 0, since = self.stamp,
    note = place.note, detail = '', inbox = place.inbox, address = place.address,
    trace = place.trace,
  }
  self.book:put(hold)
  self.free_in = math.min(self.free_in, window)
  self:wake(hold, 'granted', hold)
end

-- The capacity has shrunk below what this place asks for.
function Turn:refuse_for_good(place)
  self:bury(place.id, BURIAL, 'too_large')
  self:wake(place, 'refused')
end

-- Grant the first waiter that is not passed over, if it fits; tell whether to look again.
function Turn:grant_next()
  local book, looked_at = self.book, 0
  for place in book:queue() do
    if looked_at == SIGHT then
      return false
    end
    looked_at = looked_at + 1
    if place.units > book.capacity then
      self:refuse_for_good(place)
      return true
    end
    if self:is_full(1) then
      return false
    end
    if not self:is_silent(place, self.book.doubt) then
      if book.used + place.units > book.capacity then
        return false
      end
      self:push_grant(place)
      return true
    end
  end
  return false
end

-- End what time has ended, then grant the head of the queue while it fits: as far as STEPS go. Nothing is
-- granted while the store is closed because it came back empty.
function Turn:settle()
  local book = self.book
  if self.steps > 0 then
    for _, entry in ipairs(book:ended(self.now, self.steps)) do
      self:end_entry(entry)
      self.steps = self.steps - 1
    end
  end
  local own = self.steps == 0 and self.caller and book:get(self.caller)
  if own and own.expires <= self.now then
    self:end_entry(own)
  end
  while self.steps > 0 and book.place > 0 and self.closed_for == 0 and self:grant_next() do
    self.steps = self.steps - 1
  end
end

-- The hold is its owner's for `ttl` from now.
function Turn:claim(hold, ttl)
  hold.state = 'held'
  return Reply.granted(hold.token, hold.slots, self:extend(hold, ttl))
end

-- A heartbeat: its owner lives, and the next one is due by `recheck_in`.
function Turn:hear(place, ahead)
  local window = claim_window(place.grant_ttl)
  local is_front = ahead < FRONT or ahead - self:passed_over(math.min(ahead, SIGHT), self.book.doubt) < FRONT
  place.silence = is_front and window or 3 * window
  place.seen = self.book.last
end

-- When its owner should send its next heartbeat: at once where STEPS ran out.
function Turn:recheck_in(place, ahead)
  if self.steps == 0 then
    return 0
  end
  local window = claim_window(place.grant_ttl)
  local often = sign_of_life_after(window)
  local is_front = place.silence == window
  if is_front and ahead > 0 then
    return often
  end
  local free_in = window
  if self.book.due < self.now + window then -- else nothing ends by then
    free_in = math.max(self.book:first_release() - self.now, 0)
  end
  if is_front then
    return math.min(often, free_in)
  end
  return math.min(place.ttl / 3, self.free_in, window + math.min(window, free_in))
end

-- Where a place stands whose owner has just been heard.
function Turn:in_line(place, ahead, ttl)
  local waiting = self.book.place
  self:settle()
  local entry = self.book:get(place.id)
  if entry == place and self.closed_for == 0 and self:fits(place.units) then
    self:push_grant(place) -- from beyond what `settle` looks at
    entry = self.book:get(place.id)
  end
  if entry and entry.kind == 'hold' then
    return self:claim(entry, ttl)
  end
  if self.book.place ~= waiting then
    ahead = self.book:ahead_of(place)
  end
  return Reply.queued(ahead, self:recheck_in(place, ahead), self.now)
end

-- The owner of a place is heard: it may be its turn already, and no push is needed then. The second value
-- tells whether the place stands.
function Turn:speak_up(place, ttl)
  if place.units > self.book.capacity then
    self:bury(place.id, BURIAL, 'too_large')
    return Reply.refused('too_large'), false
  end
  local ahead = self.book:ahead_of(place)
  self:hear(place, ahead)
  self:extend(place, place.ttl)
  return self:in_line(place, ahead, ttl), true
end

-- A new place joins the queue, unless it is its turn at once.
function Turn:queue_up(place)
  self.book:put(place)
  local ahead = self.book:ahead_of(place)
  self:hear(place, ahead)
  return self:in_line(place, ahead, place.grant_ttl)
end

-- Whoever has become the head must learn when time alone could change its answer.
function Turn:wake_new_head(old)
  local head = self.book:first()
  if head and not (old and old.id == head.id) then
    self:wake(head, 'head')
  end
end
