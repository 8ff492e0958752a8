"""Errors to plant in the SQL: each must be found by the differential test."""

MUTANTS: dict[str, tuple[str, str]] = {
    "a token may be used again": ("greatest(last + 1, floor + 1,", "greatest(last, floor + 1,"),
    "a notified token is not remembered": (
        "book.last := dibs.next_token(book.last, stamp, e.floor);",
        "NULL;",
    ),
    "a notified grant overlooks the floor": (
        "dibs.next_token(book.last, stamp, e.floor)",
        "dibs.next_token(book.last, stamp, 0)",
    ),
    "a granted token is not remembered": (
        "book.last := dibs.next_token(book.last, stamp, wish.floor);",
        "NULL;",
    ),
    "growth keeps its token": ("book.last := dibs.next_token(book.last, stamp, 0);", "NULL;"),
    "a token is not written": ("SET last = book.last, capacity = book.capacity,\n", "SET\n"),
    "a renewal shortens": (
        "new.ttl := greatest(c.ttl, least(own.expires - now, own.ttl));",
        "new.ttl := c.ttl;",
    ),
    "a renewal revives nothing that was revoked": (
        "AND own.state IN ('held', 'unclaimed')",
        "AND own.state IN ('held', 'unclaimed', 'revoked')",
    ),
    "a heartbeat does not prolong": ("new.expires := now + own.ttl;", "NULL;"),
    "priority is upside down": ("-c.priority, NULL, c.ttl", "c.priority, NULL, c.ttl"),
    "silence is overlooked": ("OR now - (p.expires - p.ttl) > p.silence", ""),
    "doubt is overlooked": ("OR p.seen < doubt", ""),
    "doubt is not written": ("doubt = book.doubt, touched", "touched"),
    "an unclaimed grant casts no doubt": (
        "book.doubt := greatest(book.doubt, e.token);",
        "NULL;",
    ),
    "a heartbeat dispels no doubt": ("new.seen := book.last;", "new.seen := 0;"),
    "a try passes waiters in doubt": (
        "CASE WHEN c.queue THEN book.doubt ELSE 0 END",
        "book.doubt",
    ),
    "a resized grant is unclaimed": (
        "new.state := 'held';  -- a command",
        "-- a command",
    ),
    "the passed over are counted": (
        "AND ahead - dibs.count_passed_over(book.key",
        "AND ahead - 0 * dibs.count_passed_over(book.key",
    ),
    "more count than are examined": ("least(ahead, dibs.examined_positions())", "ahead"),
    "more are looked at than are examined": (
        "x.arrival LIMIT dibs.examined_positions()\n                LOOP",
        "x.arrival\n                LOOP",
    ),
    "all are at the front": ("new.silence := 3 * new.silence", "NULL"),
    "nobody is granted from far behind": (
        "ELSIF NOT deferred AND dibs.fits(book, own.units",
        "ELSIF false AND dibs.fits(book, own.units",
    ),
    "far behind, the next heartbeat is too late": (
        "wait + least(wait, again)",
        "wait + wait",
    ),
    "free units are not looked at again": ("free_in := least(free_in, new.ttl);", "NULL;"),
    "closed units are not looked at again": (
        "free_in := least(free_in, e.lock_delay - late);",
        "NULL;",
    ),
    "later commands look again, too": ("        free_in := NULL;\n", ""),
    "lock_delay counts from the discovery": (
        "dibs.retained(e, now, e.lock_delay - late, remember)",
        "dibs.retained(e, now, e.lock_delay, remember)",
    ),
    "a tombstone counts from the discovery": (
        "dibs.tombstone(e.id, now, e.tombstone - late, 'released', e.detail)",
        "dibs.tombstone(e.id, now, e.tombstone, 'released', e.detail)",
    ),
    "an unclaimed id is not remembered": ("ELSIF remember > late THEN", "ELSIF false THEN"),
    "an old resize undoes a newer one": ("IF c.seq > own.seq THEN", "IF c.seq <> own.seq THEN"),
    "growth is over capacity": (
        "ELSIF book.used - own.units + c.units <= book.capacity THEN",
        "ELSE",
    ),
    "the head is not notified": ("AND head.id IS DISTINCT FROM first AND", "AND false AND"),
    "the head that is answered is also notified": (
        "AND head.id IS DISTINCT FROM first AND head.id IS DISTINCT FROM c.id",
        "AND head.id IS DISTINCT FROM first",
    ),
    "a grant that is answered is also notified": (
        "IF e.id IS DISTINCT FROM c.id THEN",
        "IF true THEN",
    ),
    "an old head is remembered": (
        "                head := NULL;\n                steps",
        "                steps",
    ),
    "a capacity that grows lets nobody in": (
        "EXIT WHEN book.waiting = 0 OR steps = 0 OR deferred;",
        "EXIT WHEN book.waiting = 0 OR steps = 0 OR deferred OR stage = 'room';",
    ),
    "who asks for too much waits on": (
        "is_next := e.units > book.capacity;",
        "is_next := false;",
    ),
    "slots are dealt twice": ("get_bit(taken, slot) = 0 AND", ""),
    "slots are never free again": (
        "set_bit(taken, slot, is_taken::integer)",
        "set_bit(taken, slot, 1)",
    ),
    "new slots are not marked": (
        "book.taken := dibs.mark_slots(book.taken, new.slots, true);",
        "NULL;",
    ),
    "slots are marked once more": (
        "IF book.holds = 0 THEN\n        book.taken",
        "IF false THEN\n        book.taken",
    ),
    "those are listed that end last": (
        "ORDER BY x.expires, x.id LIMIT amount)",
        "ORDER BY x.expires DESC, x.id LIMIT amount)",
    ),
    "the order in a batch is lost": (
        "AS c ORDER BY c.key, c.n)",
        "AS c ORDER BY c.key, c.n DESC)",
    ),
    "a kept hold is extended by a repeat": ("IF own.state = 'retained' THEN", "IF false THEN"),
    "a swept key begins at nothing": ("SELECT x, begun FROM", "SELECT x, 0 FROM"),
    "an entry keeps its old row": ("x.id >= old.id ORDER BY x.id LIMIT 1) AND e", "false) AND e"),
    "what moved inside leaves its row": (
        "IF was_row THEN\n        DELETE",
        "IF was_row AND new.id IS NOT NULL THEN\n        DELETE",
    ),
    "tombstones never end": ("'{hold,waiter,tombstone}'", "'{hold,waiter}'"),
    "the hold inside never ends": ("WHERE (book.hold).expires <= until", "WHERE false"),
    "an end is looked for too late": (
        "book.due := least(book.due, new.expires);",
        "NULL;",
    ),
    "what is left to end is forgotten": (
        "SELECT min(x.expires) FROM dibs.by_expiry",
        "SELECT 1e9 + min(x.expires) FROM dibs.by_expiry",
    ),
    "steps are not counted": ("steps := steps - cardinality(over);", "NULL;"),
    "steps of grants are not counted": ("                steps := steps - 1;\n", ""),
    "batches have any number of steps": (
        "batch_steps := batch_steps - (allowed - steps);",
        "NULL;",
    ),
    "an inbox is not renewed": ("new.inbox := c.inbox;  -- its owner", "-- its owner"),
    "a fast grant leaves its slots marked": (
        "book.taken := NULL;\n    IF c.kind",
        "IF c.kind",
    ),
    "a proof for any key": ("float8send(length(key)) || key ||", "float8send(0) ||"),
}
"""What it does: the text that is replaced, and by what."""

LONE_MUTANTS: dict[str, tuple[str, str]] = {
    "a lone grant forgets its token": (
        "SET last = book.last, capacity = book.capacity, used",
        "SET capacity = book.capacity, used",
    ),
    "a lone grant forgets the capacity": (
        "SET last = book.last, capacity = book.capacity, used = book.used",
        "SET last = book.last, used = book.used",
    ),
}
"""The same where a command comes alone."""

FAST_MUTANTS: dict[str, tuple[str, str]] = {
    "a fast grant takes what is held": ("AND (book.hold).id IS NULL AND book.used = 0", ""),
    "a fast grant is of more than there is": (
        "AND c.units <= c.capacity AND book.last < ",
        "AND book.last < ",
    ),
    "a fast grant forgets when it ends": ("        book.due := now + c.ttl;\n", ""),
    "a fast release is of what has ended": ("AND book.due > now AND c.retain", "AND c.retain"),
    "a fast release is of anybody's": ("AND (book.hold).id = c.id AND", "AND"),
    "a fast release retains nothing": (
        "AND c.retain = 0 AND c.tombstone = 0",
        "AND c.tombstone = 0",
    ),
    "a fast release remembers nothing": (
        "AND c.retain = 0 AND c.tombstone = 0",
        "AND c.retain = 0",
    ),
    "a fast release leaves the units taken": ("        book.used := 0;\n", ""),
    "what is retained is released": ("AND (book.hold).state <> 'retained'\n", "\n"),
    "waiters are passed on the fast path": (
        "IF book.waiting > 0 OR book.holds > 0 OR book.tombstones > 0 THEN\n        RETURN",
        "IF book.holds > 0 OR book.tombstones > 0 THEN\n        RETURN",
    ),
    "other holds are passed on the fast path": (
        "IF book.waiting > 0 OR book.holds > 0 OR book.tombstones > 0 THEN\n        RETURN",
        "IF book.waiting > 0 OR book.tombstones > 0 THEN\n        RETURN",
    ),
    "tombstones are passed on the fast path": (
        "IF book.waiting > 0 OR book.holds > 0 OR book.tombstones > 0 THEN\n        RETURN",
        "IF book.waiting > 0 OR book.holds > 0 THEN\n        RETURN",
    ),
}
"""The same on the fast path."""
