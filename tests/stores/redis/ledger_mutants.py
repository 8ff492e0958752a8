"""Mistakes that somebody could make in the Lua: the differential test must notice each."""

MUTANTS = {
    "a plain lease in anybody's hands": (
        "if string.sub(raw, from, from + #begins - 1) == begins then",
        "if true then",
    ),
    "a plain release after the end": (
        "and list[4] == 0 and call.now < due then",
        "and list[4] == 0 then",
    ),
    "a plain release that keeps nothing": ("and list[3] == 0 and list[4]", "and list[4]"),
    "a plain release that buries nothing": ("and list[4] == 0 and call", "and call"),
    "a plain grant of what is held": (
        "name == 'acquire' and inside == 0 and",
        "name == 'acquire' and",
    ),
    "a plain grant beside the queue": ("or outside > 0 or", "or"),
    "a plain grant of many units": ("and units == 1 and capacity", "and capacity"),
    "a plain grant of many": ("and capacity == 1 then\n    local ends", "then\n    local ends"),
    "a plain grant below the floor": (
        "last = next_token(last, call.stamp, floor)\n    local row",
        "last = next_token(last, call.stamp, 0)\n    local row",
    ),
    "a plain grant that never ends": (
        "arrivals, 1, 0, 0, 0, ends,",
        "arrivals, 1, 0, 0, 0, 1e300,",
    ),
    "a plain grant that is taken by nobody": (
        "arrivals, 1, 0, 0, 0, ends,",
        "arrivals, 0, 0, 0, 0, ends,",
    ),
    "a plain release that frees nothing": (
        "arrivals, 0, 0, 0, 0, INFINITY,",
        "arrivals, 1, 0, 0, 0, INFINITY,",
    ),
    "a plain release that forgets the token": (
        "FORMAT, 0, last, 1, arrivals,",
        "FORMAT, 0, 0, 1, arrivals,",
    ),
    "a plain hold that is younger": (
        "struct.pack(PLAIN, last, ends, call.stamp)",
        "struct.pack(PLAIN, last, ends, 0)",
    ),
    "a plain hold that stays as it was": (
        "    self.inner_raw = nil -- it has changed\n",
        "    local _ = 0\n",
    ),
    "the token not raised": ("math.max(last + 1, floor + 1", "math.max(last, floor + 1"),
    "the floor ignored": ("floor + 1, believable", "believable"),
    "a stamp that is no time": ("stamp <= END_OF_TIME and stamp or 0", "stamp"),
    "a token is forgotten": (
        "  call.book.last = next_token(call.book.last, call.stamp, floor)\n  return call.book.last",
        "  return next_token(call.book.last, call.stamp, floor)",
    ),
    "a hold that never ends": ("  if now < self.due then", "  if self.due > 0 then"),
    "due too late": ("  self.due = math.min(self.due, entry.expires)\n  -- What", "  -- What"),
    "due too late where more are in the hash": (
        "self.due = math.min(self.due, (score - 1) / 1e6)",
        "local _ = 0",
    ),
    "the rest is forgotten": (
        "self.due = math.min(self.due, math.max(found[i].expires, now))",
        "local _ = 0",
    ),
    "a queue by arrival alone": ("return 0 - waiter.priority", "return 0"),
    "a queue that is passed": ("is_try and 0 or book.doubt) == examined", "0) >= 0"),
    "a try that passes waiters in doubt": ("is_try and 0 or book.doubt", "book.doubt"),
    "a resized grant that is unclaimed": (
        "hold.state = 'held' -- a command",
        "-- a command",
    ),
    "an unclaimed grant that casts no doubt": (
        "book.doubt = math.max(book.doubt, entry.token)",
        "local _ = 0",
    ),
    "no doubt is tombstone": (
        "self.due, self.horizon, self.doubt, #self.taken",
        "self.due, self.horizon, 0, #self.taken",
    ),
    "a heartbeat that dispels no doubt": ("waiter.seen = book.last", "waiter.seen = 0"),
    "the passed over are counted": (
        "ahead - count_passed_over(call, examined, book.doubt)",
        "ahead",
    ),
    "no limit to what counts": ("math.min(ahead, EXAMINED_POSITIONS)", "ahead"),
    "no limit to what is looked at": (
        "for n = 1, math.min(book.waiter, EXAMINED_POSITIONS) do",
        "for n = 1, book.waiter do",
    ),
    "all at the front": ("is_front and timeout or 3 * timeout", "timeout"),
    "none at the front": ("is_front and timeout or 3 * timeout", "3 * timeout"),
    "nobody granted from far behind": ("if book:get(waiter.id) == waiter and", "if nil and"),
    "whoever is far behind looks too late": ("timeout + math.min(timeout, free_in)", "2 * timeout"),
    "the first one looks too late": ("is_front and math.min(often, free_in)", "is_front and often"),
    "the silent not passed over": ("call.now - heard > waiter.silence or", ""),
    "those in doubt not passed over": ("or waiter.seen < doubt", ""),
    "whoever comes upon free units looks away": (
        "call.units_free_in = math.min(call.units_free_in, timeout)",
        "",
    ),
    "whoever comes upon closed units looks away": (
        "call.units_free_in = math.min(call.units_free_in, entry.lock_delay - late)",
        "",
    ),
    "the waiter left in the queue": (
        "redis.call('ZREM', key .. 'queue', member_of(old))",
        "local _ = 0",
    ),
    "the entry left in the hash": ("redis.call('HDEL', key .. 'entry', id)", "local _ = 0"),
    "its end left": ("redis.call('ZREM', key .. INDEX[old.kind], id)", "local _ = 0"),
    "a front that is out of date": (
        "member_of(old))\n      self.front = {}\n",
        "member_of(old))\n",
    ),
    "units counted twice": ("self.used = self.used - entry.units", ""),
    "another's slot": ("bit.band(byte, bit.lshift(1, slot % 8)) == 0 then", "true then"),
    "a slot that is never free again": (
        "is_taken and bit.bor(byte, mask) or bit.band(byte, bit.bnot(mask))",
        "bit.bor(byte, mask)",
    ),
    "a slot that nobody notes": ("self.taken = mark(self.taken, entry.slots, true)", ""),
    "slots without a number": ("book.capacity > MAX_SLOTS and", "book.capacity > 1 and"),
    "those listed that end last": (
        "return one.expires < other.expires",
        "return one.expires > other.expires",
    ),
    "the hold inside not listed": ("  found[#found + 1] = self.inner\n", ""),
    "a change that is not written": (
        "-- it has changed\n  else",
        "-- it has changed\n  elseif old ~= entry then",
    ),
    "newcomers not counted": (
        "elseif self.waiter > 0 then\n    ahead =",
        "elseif nil then\n    ahead =",
    ),
    "a waiter counted far": (
        "return math.min(ahead, COUNTED_POSITIONS)",
        "return math.min(ahead, 2)",
    ),
    "a batch without an end": ("call.steps_left = call.steps_left - (steps - call.steps)", ""),
    "a command without an end": (
        "    expire(call, entry)\n    call.steps = call.steps - 1",
        "    expire(call, entry)",
    ),
    "the caller that is over": ("if own and own.expires <= call.now then", "if nil then"),
    "old news": ("if each.is_old or each.inbox == '' then", "if each.inbox == '' then"),
    "the granted told that they are next": (
        "(heads[each.key] or notified[each.lease])",
        "heads[each.key]",
    ),
    "news lost": ("each.is_head and (heads", "(heads"),
    "a kept hold that is kept longer": (
        "if entry and entry.state == 'retained' then -- a repeat never extends it",
        "if false then",
    ),
    "no lock_delay": ("entry.lock_delay > late then", "false then"),
    "an unclaimed grant whose id lives on": (
        "entry.state == 'unclaimed' or entry.state == 'revoked'\n  if",
        "entry.state == 'revoked'\n  if",
    ),
    "a buried id refused": ("if entry.reason == 'too_large' then", "if entry.reason then"),
    "a too large one gone": ("if entry.reason == 'too_large' then", "if false then"),
    "an old resize": ("if command.seq > hold.seq then", "if true then"),
    "growth beyond the capacity": (
        "book.used - hold.units + command.units <= book.capacity and",
        "",
    ),
    "growth without a token": ("grows and take_token(call, 0) or hold.token", "hold.token"),
    "a revoked lease renewed": (
        "if entry.state == 'held' then\n    return {'renewed'",
        "if entry.state == 'held' or entry.state == 'revoked' then\n    return {'renewed'",
    ),
    "everybody revoked": ("(not command.lease or command.lease == hold.lease)", "true"),
    "the caller notified": ("if entry.id ~= call.caller then", "if true then"),
    "the head not told": ("notify(call, new_head, 'head')", "local _ = 0"),
    "all published": ("if each.inbox == inbox then", "if false then"),
    "the old inbox": ("entry.inbox = command.inbox -- its owner", "-- its owner"),
    "a renewal that moves no inbox": ("entry.inbox = command.inbox\n", "\n"),
    "a lease that is shortened": (
        "math.max(ttl, math.min(entry.expires - call.now, entry.ttl))",
        "ttl",
    ),
    "a greater capacity that lets nobody in": (
        "if book.waiter > 0 then\n    settle(call)",
        "if nil then\n    settle(call)",
    ),
    "a proof for any key": ("name = name == '%' and '' or", "name = 'x' and '' or"),
    "a proof for an escaped key": ("'%%7D', '}')", "'%%7D', '%%7D')"),
    "a proof without slots": ("table.concat(hold.slots, ',') .. hold.id", "hold.id"),
}
