"""Errors to plant in the SQL: each must be found by the differential test."""

MUTANTS: dict[str, tuple[str, str]] = {
    "a token may be used again": ("greatest(last + 1, floor + 1,", "greatest(last, floor + 1,"),
    "a granted token is not remembered": ("t.book.last := t.granted;", "NULL;"),
    "an easy grant forgets its token": (
        "last = dibs.next_token(k.last, now_stamp, c.floor)",
        "last = k.last",
    ),
    "an easy release forgets the waiters": (
        "AND k.due > now\n            AND k.waiting = 0 AND k.holds",
        "AND k.due > now\n            AND k.holds",
    ),
    "an easy grant revives a buried id": (
        "AND k.waiting = 0 AND k.holds = 0\n            AND k.tombs = 0",
        "AND k.waiting = 0 AND k.holds = 0",
    ),
    "an easy renewal revives what expired": (
        "AND k.state = 'held' AND k.due > now",
        "AND k.state = 'held'",
    ),
    "a renewal shortens": ("SELECT greatest(seconds, least(expires - now, ttl))", "SELECT seconds"),
    "priority is upside down": ("place.urgency := -c.priority", "place.urgency := c.priority"),
    "silence is overlooked": (
        "OR now - (p.expires - p.ttl) > p.silence",
        "",
    ),
    "doubt is overlooked": ("OR p.seen < doubt", ""),
    "doubt is not written": ("doubt = book.doubt, touched", "touched"),
    "an unclaimed grant casts no doubt": ("greatest((t.book).doubt, e.token)", "0"),
    "a heartbeat dispels no doubt": ("place.seen := (t.book).last", "place.seen := 0"),
    "a try passes waiters in doubt": ("CASE WHEN is_try THEN 0 ELSE book.doubt END", "book.doubt"),
    "a resized grant is unclaimed": (
        "hold.state := 'held';  -- its owner speaks",
        "-- its owner speaks",
    ),
    "the passed over are counted": (
        "AND ahead - dibs.passed_over(t,",
        "AND ahead - 0 * dibs.passed_over(t,",
    ),
    "more count than are in sight": ("least(ahead, dibs.sight())", "ahead"),
    "more are looked at than are in sight": (
        "x.arrival LIMIT dibs.sight()\n    LOOP\n        IF p.units",
        "x.arrival\n    LOOP\n        IF p.units",
    ),
    "all are at the front": ("place.silence := 3 * place.silence", "NULL"),
    "nobody is granted from far behind": (
        "IF NOT t.deferred AND dibs.fits(t, place.units, false)",
        "IF false",
    ),
    "whoever is far behind looks too late": ("wait + least(wait, free_in)", "2 * wait"),
    "whoever comes upon free units looks away": (
        "t.free_in := least(t.free_in, hold.ttl);",
        "",
    ),
    "whoever comes upon closed units looks away": (
        "t.free_in := least(t.free_in, e.lock_delay - late);",
        "",
    ),
    "whoever speaks after that must look, too": ("    t.free_in := NULL;\n", ""),
    "lock_delay counts from the discovery": ("e.lock_delay - late, bury", "e.lock_delay, bury"),
    "an old resize undoes a newer one": ("IF c.seq > hold.seq THEN", "IF c.seq <> hold.seq THEN"),
    "the head is not woken": ("(t.head).id IS DISTINCT FROM old_id", "false"),
    "who is answered is also pushed": ("e.id IS NOT DISTINCT FROM t.caller OR", ""),
    "a capacity that grows lets nobody in": (
        "(t.book).waiting > 0 THEN\n        t := dibs.settle",
        "false THEN\n        t := dibs.settle",
    ),
    "slots are dealt twice": ("get_bit(book.taken, slot) = 0 AND", ""),
    "slots are never free again": (
        "set_bit(taken, slot, is_taken::integer)",
        "set_bit(taken, slot, 1)",
    ),
    "a resize marks no slots": (
        "t.book.taken := dibs.mark_slots((t.book).taken, hold.slots, true);",
        "",
    ),
    "slots are marked once more": (
        "IF book.holds = 0 THEN\n        book.taken",
        "IF false THEN\n        book.taken",
    ),
    "those are listed that end last": (
        "ORDER BY h.expires, h.id LIMIT amount",
        "ORDER BY h.expires DESC, h.id LIMIT amount",
    ),
    "one key's order in a batch is lost": (
        "ORDER BY x.key, x.n LOOP",
        "ORDER BY x.key, x.n DESC LOOP",
    ),
    "any command of a key may be easy": (
        "PARTITION BY c.key ORDER BY c.n) = 1",
        "PARTITION BY c.key ORDER BY c.n) > 0",
    ),
    "a kept hold is extended by a repeat": (
        "IF e.what = 'hold' AND e.state = 'kept' THEN\n        IF c.bury",
        "IF false THEN\n        IF c.bury",
    ),
    "a flaw is let pass": ("WHEN c.units < 1 OR c.floor < 0", "WHEN c.units < 1"),
    "a swept key begins at nothing": ("SELECT x, begun FROM", "SELECT x, 0 FROM"),
}
"""What it does: the text that is replaced, and by what."""

LONE_MUTANTS: dict[str, tuple[str, str]] = {
    "a lone grant forgets its token": (
        "last = new_token, id = c.id",
        "last = was.last, id = c.id",
    ),
    "a lone release forgets the waiters": (
        "IF was.waiting = 0 AND was.holds = 0 AND was.tombs = 0 THEN\n        IF c.kind",
        "IF was.holds = 0 AND was.tombs = 0 THEN\n        IF c.kind",
    ),
    "a lone grant revives a buried id": (
        "IF was.waiting = 0 AND was.holds = 0 AND was.tombs = 0 THEN\n        IF c.kind",
        "IF was.waiting = 0 AND was.holds = 0 THEN\n        IF c.kind",
    ),
    "a lone release is of what has ended": (
        "was.id = c.id AND was.due > t.now\n            AND was.state IN",
        "was.id = c.id\n            AND was.state IN",
    ),
    "a flaw is let pass": (
        "AND c.units <= c.capacity\n            AND dibs.flaw(c) IS NULL",
        "AND c.units <= c.capacity",
    ),
    "a silent head is handed to": (
        "OR dibs.silent(head, t.now, was.doubt) OR was.waiting > 1",
        "OR was.waiting > 1",
    ),
    "who fits beside the head is not let in": (
        "OR head.units + next.units <= was.capacity OR dibs",
        "OR dibs",
    ),
    "the next head is told nothing": (
        "IF was.waiting > 1 AND next.inbox <> ''",
        "IF false",
    ),
    "what is kept is released": (
        "AND was.state IN ('held', 'unclaimed', 'revoked') AND c.keep = 0 AND c.bury = 0\n        THEN",
        "AND c.keep = 0 AND c.bury = 0\n        THEN",
    ),
    "what is kept is handed over": (
        "AND was.state IN ('held', 'unclaimed', 'revoked') AND was.holds = 0",
        "AND was.holds = 0",
    ),
    "what has ended is handed over": (
        "AND c.kind = 'release' AND was.id = c.id AND was.due > t.now\n        AND was.state",
        "AND c.kind = 'release' AND was.id = c.id\n        AND was.state",
    ),
    "who is next and asks for too much is not refused": (
        "AND (next.units > was.capacity\n            OR head.units",
        "AND (head.units",
    ),
    "who is next and silent keeps others out": (
        "OR head.units + next.units <= was.capacity OR dibs.silent(next, t.now, was.doubt))",
        "OR head.units + next.units <= was.capacity)",
    ),
    "a hand-over forgets the lock_delay": (
        "lock_delay = head.lock_delay, bury = 0",
        "lock_delay = 0, bury = 0",
    ),
    "a hand-over counts nobody out": (
        "waiting = was.waiting - 1,\n        due",
        "waiting = was.waiting,\n        due",
    ),
    "a hand-over forgets its token": (
        "last = new_token, used = head.units",
        "last = was.last, used = head.units",
    ),
    "a proof for any key": ("float8send(length(key)) || key ||", "float8send(0) ||"),
}
"""The same, of commands that come alone."""
