-- core/ledger.py: the rules, by which every command is answered.

local HOLDERS_NAMED = 8 -- by a refusal
local HOLDERS_SHOWN = 100 -- by a status
local WAITERS_SHOWN = 100

-- ---- Acquire -------------------------------------------------------------------------------------

-- A repeat: it renews a living hold, keeps a place alive, and never revives what has ended.
local function acquire_again(turn, command, entry)
  if entry.kind == 'tomb' then
    return entry.reason == 'too_large' and Reply.refused('too_large') or Reply.GONE
  end
  if entry.state == 'kept' or entry.state == 'revoked' then
    return Reply.GONE
  end
  entry.inbox = command.inbox -- its owner may have reconnected
  if entry.kind == 'place' then
    return (turn:speak_up(entry, command.ttl))
  end
  return turn:claim(entry, command.ttl)
end

local function grant(turn, command)
  local token = turn:take_token(command.floor)
  local slots = turn:free_slots(command.units, '')
  turn.book:put({
    kind = 'hold', id = command.id, lease = command.lease, owner = command.owner, token = token,
    units = command.units, slots = slots, ttl = command.ttl, expires = turn.now + command.ttl,
    state = 'held', seq = 0, lock_delay = command.lock_delay, bury = 0, since = turn.stamp,
    note = command.note, detail = '', inbox = command.inbox, address = command.address,
    trace = command.trace,
  })
  return Reply.granted(token, slots, command.ttl)
end

local function new_place(turn, command)
  turn.book.arrivals = turn.book.arrivals + 1
  return {
    kind = 'place', id = command.id, lease = command.lease, owner = command.owner,
    units = command.units, priority = command.priority, arrival = turn.book.arrivals,
    grant_ttl = command.ttl, ttl = command.patience, expires = turn.now + command.patience,
    floor = command.floor, lock_delay = command.lock_delay,
    since = turn.stamp, note = command.note, inbox = command.inbox, address = command.address,
    trace = command.trace,
  }
end

-- Not now: who is in the way, and when time alone could change that.
local function refuse(turn)
  local list = turn.book:first_to_end(HOLDERS_NAMED)
  local closed = #list > 0
  for _, hold in ipairs(list) do
    closed = closed and hold.state == 'kept'
  end
  local again = turn.steps == 0 and 0 or list[1] and math.max(list[1].expires - turn.now, 0) or WINDOW
  return Reply.refused(closed and 'closed' or 'held', Views.holders_of(turn, list, HOLDERS_NAMED), again)
end

local Rules = {}

function Rules.A(turn, command)
  local entry = turn.book:get(command.id)
  if entry then
    return acquire_again(turn, command, entry)
  end
  if command.units > command.capacity then
    return Reply.refused('too_large')
  end
  if turn.closed_for > 0 then
    return Reply.refused('closed', nil, turn.closed_for)
  end
  turn.book.capacity = command.capacity
  if turn.book.place > 0 then
    turn:settle() -- a greater capacity lets the queue in first
  end
  if turn:fits(command.units, not command.queue) then
    return grant(turn, command)
  end
  if not command.queue then
    return refuse(turn)
  end
  return turn:queue_up(new_place(turn, command))
end

-- ---- Renew, Release ------------------------------------------------------------------------------

function Rules.N(turn, command)
  local entry = turn.book:get(command.id)
  if not entry then
    return Reply.lost()
  end
  if command.inbox ~= '' and entry.kind ~= 'tomb' then
    entry.inbox = command.inbox
    turn.book:put(entry)
  end
  if entry.state == 'held' then
    return Reply.renewed(turn:extend(entry, command.ttl))
  elseif entry.state == 'unclaimed' then
    return turn:claim(entry, command.ttl)
  elseif entry.kind == 'place' then
    local reply, stands = turn:speak_up(entry, command.ttl)
    return stands and reply or Reply.lost('expired', 'too large')
  elseif entry.state == 'revoked' or entry.reason == 'revoked' then
    return Reply.lost('revoked', entry.detail)
  end
  return Reply.lost()
end

function Rules.X(turn, command)
  local entry = turn.book:get(command.id)
  if not entry then
    if command.bury > 0 then
      turn:bury(command.id, command.bury)
    end
    return Reply.UNKNOWN
  end
  if entry.kind == 'tomb' then
    if command.bury > 0 then
      turn:extend(entry, command.bury) -- its Acquire may have been sent again since
    end
    return Reply.UNKNOWN
  end
  if entry.state == 'kept' then
    if command.bury > entry.bury then
      entry.bury = command.bury
      turn.book:put(entry)
    end
  elseif entry.kind == 'hold' and command.keep > 0 then
    turn:keep(entry, command.keep, command.bury)
  elseif command.bury > 0 then
    turn:bury(command.id, command.bury)
  else
    turn.book:remove(entry)
  end
  return Reply.RELEASED
end

-- ---- Resize --------------------------------------------------------------------------------------

-- Growing ignores the queue: who holds on would otherwise wait for those who wait for it.
local function set_units(turn, hold, units)
  local book = turn.book
  local grows = units > hold.units
  if grows and (book.used - hold.units + units > book.capacity or turn.closed_for > 0) then
    return book:put(hold)
  end
  local slots = grows and turn:free_slots(units, hold.slots) or string.sub(hold.slots, 1, 4 * units)
  book:remove(hold)
  if grows then
    hold.token = turn:take_token(0) -- more units are a new grant
  end
  hold.units = units
  hold.slots = slots
  book:put(hold)
end

local function refuse_growth(turn, hold, units)
  if units > turn.book.capacity then
    return Reply.refused('too_large')
  end
  if turn.closed_for > 0 then
    return Reply.refused('closed', nil, turn.closed_for)
  end
  local others = {}
  for _, other in ipairs(turn.book:first_to_end(HOLDERS_NAMED + 1)) do
    if other ~= hold then
      others[#others + 1] = other
    end
  end
  local again = others[1] and others[1].expires - turn.now or 0
  return Reply.refused('held', Views.holders_of(turn, others, HOLDERS_NAMED), math.max(again, 0))
end

function Rules.Z(turn, command)
  local hold = turn.book:get(command.id)
  if not hold or hold.kind ~= 'hold' or hold.state == 'kept' then
    return Reply.lost()
  end
  if hold.state == 'revoked' then
    return Reply.lost('revoked', hold.detail)
  end
  hold.state = 'held' -- its owner speaks, so it is claimed
  local left = turn:extend(hold, 0)
  if command.seq > hold.seq then
    hold.seq = command.seq -- also of what is refused: its late copy must not succeed
    set_units(turn, hold, command.units)
  end
  if command.seq == hold.seq and command.units ~= hold.units then
    return refuse_growth(turn, hold, command.units)
  end
  return Reply.granted(hold.token, hold.slots, left)
end

-- ---- Revoke, Inspect -----------------------------------------------------------------------------

function Rules.V(turn, command)
  local count, ends_in = 0, 0
  for _, hold in ipairs(turn.book:holds()) do
    if hold.state ~= 'kept' and (not command.lease or command.lease == hold.lease) then
      count = count + 1
      turn:wake(hold, 'revoked', nil, command.reason)
      if command.now then
        turn:bury(hold.id, BURIAL, 'revoked', command.reason)
      else
        hold.state = 'revoked'
        hold.detail = command.reason
        turn.book:put(hold)
        ends_in = math.max(ends_in, hold.expires - turn.now)
      end
    end
  end
  return Reply.revoked(count, ends_in)
end

function Rules.I(turn)
  local book = turn.book
  local list, waiters = book:first_to_end(HOLDERS_SHOWN), {}
  table.sort(list, function(one, other)
    return one.token < other.token
  end)
  if book.place > 0 then
    for place in book:queue() do
      if #waiters == WAITERS_SHOWN then
        break
      end
      waiters[#waiters + 1] = Views.waiter_of(turn, place)
    end
  end
  return Reply.status(book, Views.holders_of(turn, list, #list), waiters)
end

local steps_left = BATCH_STEPS -- of this batch
local books = {} -- those of this batch: many of its commands may be about one key

-- The book that this row begins. Whoever is about to change it takes it out, so that an error half-way
-- leaves nothing that others would go on from.
local function take_book(key, row)
  local book = books[key]
  books[key] = nil
  if book and book.raw == row then
    return book
  end
  return Book.open(key, row)
end

local function decide(turn, letter, command)
  local head = turn.book:first()
  turn:settle()
  local reply = Rules[letter](turn, command)
  turn:settle()
  turn:wake_new_head(head)
  return reply
end

-- Apply one command to the book of its key; return the reply, the row that the key has now, who should be
-- woken, and whether something is still to be written: that may wait if the batch has `more` about the key.
local function apply(raw, key, row, now, stamp, expires, closed_for, more)
  local letter = string.sub(raw, 1, 1)
  local command = Command[letter](raw)
  letter = string.upper(letter)
  local flaw = Flaws[letter] and Flaws[letter](command)
  local book, reply, wakeups = nil, nil, {}
  if flaw then
    reply = Reply.failed('invalid', flaw)
    book = books[key] and books[key].raw == row and books[key] -- what it has to write is to be written
  else
    book = take_book(key, row)
    local steps = math.max(math.min(steps_left, STEPS), FEW_STEPS)
    local turn = setmetatable({
      book = book, now = now, stamp = stamp, caller = command.id, wakeups = wakeups,
      closed_for = closed_for, free_in = math.huge, steps = steps,
    }, Turn)
    reply = decide(turn, letter, command)
    steps_left = steps_left - (steps - turn.steps)
  end
  local waits = more and book
  if book and not waits then
    row = book:flush(now, stamp, expires)
  end
  books[key] = book or nil
  return reply, row, wakeups, waits
end

return apply, Reply.failed
