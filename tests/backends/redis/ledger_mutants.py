"""Mistakes that somebody could make in the Lua: the differential test must notice each."""

MUTANTS = {
    "a plain release by anybody": ("inner ~= id or state == 'kept'", "state == 'kept'"),
    "a plain renewal by anybody": (
        "after ~= #row + 1 or inner ~= id or state ~= 'held'",
        "after ~= #row + 1 or state ~= 'held'",
    ),
    "a plain renewal after the end": ("or now >= expiry or not (wish", "or not (wish"),
    "a plain renewal that shortens": ("math.max(wish, math.min(expiry - now, ttl))", "wish"),
    "a plain grant of any shape": ("units == 1 and capacity == 1 and", ""),
    "the token not raised": ("math.max(last + 1, floor + 1", "math.max(last, floor + 1"),
    "the floor ignored": ("floor + 1, believable", "believable"),
    "a stamp that is no time": ("stamp <= END_OF_TIME and stamp or 0", "stamp"),
    "tokens not reserved": ("self.book.last = token + count - 1", "self.book.last = token"),
    "a hold that never ends": ("if now < self.due then", "if self.due > 0 then"),
    "due too late": ("self.due = math.min(self.due, entry.expires)", ""),
    "a queue by arrival alone": ("return 0 - place.priority", "return 0"),
    "a queue that is passed": (
        "if not self:is_silent(place) then\n        return false",
        "if nil then",
    ),
    "the silent not passed over": (
        "local heard = ",
        "if true then return false end\n  local heard = ",
    ),
    "the place left in the queue": ("add(calls, 'ZREM', 'queue', member_of(old))", ""),
    "units counted twice": ("self.used = self.used - entry.units", ""),
    "another's slot": ("if not taken[slot] then", "if true then"),
    "a kept hold that is kept longer": (
        "if entry.state == 'kept' then\n    if",
        "if false then\n    if",
    ),
    "no lock_delay": ("entry.lock_delay > late then", "false then"),
    "an unclaimed grant whose id lives on": ("unclaimed = 'unclaimed', ", ""),
    "a buried id refused": (
        "entry.reason == 'too_large' and Reply.refused('too_large') or Reply.GONE",
        "Reply.refused('too_large')",
    ),
    "an old resize": ("if command.seq > hold.seq then", "if true then"),
    "growth beyond the capacity": ("book.used - hold.units + units > book.capacity", "false"),
    "growth without a token": ("hold.token = turn:take_tokens(1, 0)", "local _ = 0"),
    "a revoked lease renewed": (
        "if entry.state == 'held' then",
        "if entry.state == 'held' or entry.state == 'revoked' then",
    ),
    "everybody revoked": ("(not command.lease or command.lease == hold.lease)", "true"),
    "the caller woken": ("if entry.id == self.caller then", "if false then"),
    "the head not told": ("turn:wake_new_head(head)", ""),
    "all published": ("if wakeup.inbox == inbox then", "if false then"),
    "the place's rank off by one": ("ahead = ahead - 1", ""),
    "the old inbox": ("entry.inbox = command.inbox -- its owner", "-- its owner"),
    "invalid numbers": ("return number > 0 and number < INFINITY", "return number > 0"),
}
