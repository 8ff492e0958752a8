-- The book of one key: `core/book.py`, over rows. A turn carries the key's own row as `book`; it is read
-- once and written once for all of a batch's commands on that key. Other rows are written at once.
--
-- Where it differs: an entry knows in which table its row is (`stored`; 'keys' for the hold inside, null
-- for none), so what takes another entry's place is either a changed copy of it (`put` rewrites the row)
-- or follows a `remove`. There is no beat: it is for observers without the store's clock.

-- ---- reading ------------------------------------------------------------------------------------------
--
-- Where a table has two indexes, an ORDER BY names the one that is meant: to a session that planned while
-- there were few rows they look alike, and the other one would have it read all of a key's rows.

-- Whatever an id has; null where it has nothing.
CREATE FUNCTION dibs.get(t dibs.turn, entry_id text) RETURNS dibs.entry
LANGUAGE plpgsql AS $$
DECLARE
    book dibs.keys := t.book;
    place dibs.places;
    hold dibs.holds;
    tomb dibs.tombs;
BEGIN
    IF book.id = entry_id THEN
        RETURN dibs.inner_hold(book);
    END IF;
    IF book.waiting > 0 THEN
        SELECT * INTO place FROM dibs.places AS p
        WHERE p.key = book.key AND p.id >= entry_id ORDER BY p.id LIMIT 1;
        IF place.id = entry_id THEN
            RETURN dibs.entry(place);
        END IF;
    END IF;
    IF book.holds > 0 THEN
        SELECT * INTO hold FROM dibs.holds AS h
        WHERE h.key = book.key AND h.id >= entry_id ORDER BY h.id LIMIT 1;
        IF hold.id = entry_id THEN
            RETURN dibs.entry(hold);
        END IF;
    END IF;
    IF book.tombs > 0 THEN
        SELECT * INTO tomb FROM dibs.tombs AS b
        WHERE b.key = book.key AND b.id >= entry_id ORDER BY b.id LIMIT 1;
        IF tomb.id = entry_id THEN
            RETURN dibs.entry(tomb);
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- Where the row of a hold is.
CREATE FUNCTION dibs.hold_at(wanted bytea, entry_id text) RETURNS tid LANGUAGE sql STABLE AS $$
    SELECT h.ctid FROM dibs.holds AS h
    WHERE h.key = wanted AND h.id >= entry_id ORDER BY h.id LIMIT 1
$$;

-- All holds, in any order. Only a revocation reads them.
CREATE FUNCTION dibs.holds_of(book dibs.keys) RETURNS SETOF dibs.entry
LANGUAGE sql STABLE AS $$
    SELECT (dibs.inner_hold(book)).* WHERE book.id IS NOT NULL
    UNION ALL
    SELECT (dibs.entry(h)).* FROM dibs.holds AS h
    WHERE book.holds > 0 AND h.key = book.key
$$;

-- The holds that time ends first; those that end at the same time, in the order of their ids.
CREATE FUNCTION dibs.first_to_end(book dibs.keys, amount integer) RETURNS SETOF dibs.entry
LANGUAGE sql STABLE AS $$
    SELECT x.* FROM (
        SELECT (dibs.inner_hold(book)).* WHERE book.id IS NOT NULL
        UNION ALL
        (SELECT (dibs.entry(h)).* FROM dibs.holds AS h
            WHERE book.holds > 0 AND h.key = book.key ORDER BY h.expires, h.id LIMIT amount)
    ) AS x ORDER BY x.expires, x.id COLLATE "C" LIMIT amount
$$;

-- With the place that comes first in the queue, if anybody waits. What changes the queue forgets it.
CREATE FUNCTION dibs.with_head(t dibs.turn) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    first dibs.places;
BEGIN
    IF (t.book).waiting > 0 AND (t.head).id IS NULL THEN
        SELECT * INTO first FROM dibs.places AS p
        WHERE p.key = (t.book).key ORDER BY p.urgency, p.arrival LIMIT 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'its row counts % places, and there are none', (t.book).waiting
                USING ERRCODE = 'data_corrupted';
        END IF;
        t.head := first;
    END IF;
    RETURN t;
END $$;

CREATE FUNCTION dibs.positions() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1000::bigint';

-- How many places come before one that is not in the queue yet: of its urgency it will be the last.
CREATE FUNCTION dibs.ahead_of_new(book dibs.keys, place dibs.entry) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    last bigint;
BEGIN
    IF book.waiting > 0 THEN
        SELECT p.urgency INTO last FROM dibs.places AS p
        WHERE p.key = book.key ORDER BY p.urgency DESC, p.arrival DESC LIMIT 1;
        IF last > place.urgency THEN
            RETURN dibs.ahead_of(book, place);
        END IF;
    END IF;
    RETURN least(book.waiting, dibs.positions());
END $$;

-- How many places come before this one, counted up to `positions`.
CREATE FUNCTION dibs.ahead_of(book dibs.keys, place dibs.entry) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN count(*) FROM (SELECT FROM dibs.places AS p
        WHERE p.key = book.key AND (p.urgency, p.arrival) < (place.urgency, place.arrival)
        ORDER BY p.urgency, p.arrival LIMIT dibs.positions()) AS ahead;
END $$;

-- When time alone frees units for the first time; infinity where it never does.
CREATE FUNCTION dibs.first_release(book dibs.keys) RETURNS double precision
LANGUAGE plpgsql AS $$
BEGIN
    IF book.holds = 0 THEN
        RETURN coalesce(book.expires, 'Infinity');
    END IF;
    RETURN least(book.expires, (SELECT h.expires FROM dibs.holds AS h
        WHERE h.key = book.key ORDER BY h.expires, h.id LIMIT 1));
END $$;

-- The first entries that are still here though their time is over, of each kind, in the order of their ends.
CREATE FUNCTION dibs.ended(book dibs.keys, now double precision, most integer)
RETURNS SETOF dibs.entry LANGUAGE plpgsql AS $$
BEGIN
    IF book.expires <= now THEN
        RETURN NEXT dibs.inner_hold(book);
    END IF;
    IF book.holds > 0 THEN
        RETURN QUERY SELECT (dibs.entry(h)).* FROM dibs.holds AS h
            WHERE h.key = book.key AND h.expires <= now ORDER BY h.expires, h.id LIMIT most;
    END IF;
    IF book.waiting > 0 THEN
        RETURN QUERY SELECT (dibs.entry(p)).* FROM dibs.places AS p
            WHERE p.key = book.key AND p.expires <= now ORDER BY p.expires, p.id LIMIT most;
    END IF;
    IF book.tombs > 0 THEN
        RETURN QUERY SELECT (dibs.entry(b)).* FROM dibs.tombs AS b
            WHERE b.key = book.key AND b.expires <= now ORDER BY b.expires, b.id LIMIT most;
    END IF;
END $$;

-- When the first of those ends that live on.
CREATE FUNCTION dibs.next_due(book dibs.keys, now double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    due double precision := CASE WHEN book.expires > now THEN book.expires ELSE 'Infinity' END;
BEGIN
    IF book.holds > 0 THEN
        due := least(due, (SELECT h.expires FROM dibs.holds AS h
            WHERE h.key = book.key AND h.expires > now ORDER BY h.expires, h.id LIMIT 1));
    END IF;
    IF book.waiting > 0 THEN
        due := least(due, (SELECT min(p.expires) FROM dibs.places AS p
            WHERE p.key = book.key AND p.expires > now));
    END IF;
    IF book.tombs > 0 THEN
        due := least(due, (SELECT b.expires FROM dibs.tombs AS b
            WHERE b.key = book.key AND b.expires > now ORDER BY b.expires LIMIT 1));
    END IF;
    RETURN due;
END $$;

-- ---- writing ------------------------------------------------------------------------------------------

-- Write an entry, over its row if it has one.
CREATE FUNCTION dibs.put(t dibs.turn, e dibs.entry) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    book dibs.keys := t.book;
BEGIN
    book.due := least(book.due, e.expires);
    CASE e.what
    WHEN 'hold' THEN
        IF e.stored IS NULL THEN
            book.used := book.used + e.units;
            book.taken := dibs.mark_slots(book.taken, e.slots, true);
        END IF;
        IF e.stored = 'keys' OR e.stored IS NULL AND book.id IS NULL THEN
            book := dibs.with_inner(book, e);
        ELSIF e.stored IS NULL THEN
            book.holds := book.holds + 1;
            INSERT INTO dibs.holds VALUES (book.key, e.id, e.owner, e.token, e.units, e.slots,
                e.ttl, e.expires, e.state, e.seq, e.lock_delay, e.bury, e.since, e.note, e.detail,
                e.inbox, e.address, e.trace);
        ELSE
            UPDATE dibs.holds AS h SET owner = e.owner, token = e.token, units = e.units,
                slots = e.slots, ttl = e.ttl, expires = e.expires, state = e.state, seq = e.seq,
                lock_delay = e.lock_delay, bury = e.bury, note = e.note, detail = e.detail,
                inbox = e.inbox, address = e.address, trace = e.trace
            WHERE h.ctid = dibs.hold_at(book.key, e.id) AND h.id = e.id;
        END IF;
    WHEN 'place' THEN
        t.head := NULL;
        IF e.stored IS NULL THEN
            book.waiting := book.waiting + 1;
            INSERT INTO dibs.places VALUES (book.key, e.id, e.owner, e.units, e.urgency,
                e.arrival, e.grant_ttl, e.ttl, e.expires, e.silence, e.seen, e.floor,
                e.lock_delay, e.since, e.note, e.inbox, e.address, e.trace);
        ELSE
            UPDATE dibs.places AS p
            SET ttl = e.ttl, expires = e.expires, silence = e.silence, seen = e.seen,
                inbox = e.inbox
            WHERE p.key = book.key AND p.urgency = e.urgency AND p.arrival = e.arrival
                AND p.id = e.id;
        END IF;
    WHEN 'tomb' THEN
        IF e.stored IS NULL THEN
            book.tombs := book.tombs + 1;
            INSERT INTO dibs.tombs VALUES (book.key, e.id, e.ttl, e.expires, e.reason, e.detail);
        ELSE
            UPDATE dibs.tombs AS b SET ttl = e.ttl, expires = e.expires
            WHERE b.key = book.key AND b.id = e.id;
        END IF;
    END CASE;
    t.book := book;
    RETURN t;
END $$;

-- The key's own row with that hold inside.
CREATE FUNCTION dibs.with_inner(book dibs.keys, e dibs.entry) RETURNS dibs.keys
LANGUAGE plpgsql AS $$
BEGIN
    book.id := e.id;
    book.owner := e.owner;
    book.token := e.token;
    book.units := e.units;
    book.slots := e.slots;
    book.ttl := e.ttl;
    book.expires := e.expires;
    book.state := e.state;
    book.seq := e.seq;
    book.lock_delay := e.lock_delay;
    book.bury := e.bury;
    book.since := e.since;
    book.note := e.note;
    book.detail := e.detail;
    book.inbox := e.inbox;
    book.address := e.address;
    book.trace := e.trace;
    RETURN book;
END $$;

-- Strike an entry out.
CREATE FUNCTION dibs.remove(t dibs.turn, e dibs.entry) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    book dibs.keys := t.book;
BEGIN
    CASE e.stored
    WHEN 'keys' THEN
        book := dibs.with_inner(book, NULL);
        book.used := book.used - e.units;
        book.taken := dibs.mark_slots(book.taken, e.slots, false);
    WHEN 'holds' THEN
        DELETE FROM dibs.holds AS h WHERE h.ctid = dibs.hold_at(book.key, e.id) AND h.id = e.id;
        book.holds := book.holds - 1;
        book.used := book.used - e.units;
        book.taken := dibs.mark_slots(book.taken, e.slots, false);
    WHEN 'places' THEN
        DELETE FROM dibs.places AS p WHERE p.key = book.key AND p.urgency = e.urgency
            AND p.arrival = e.arrival AND p.id = e.id;
        book.waiting := book.waiting - 1;
        t.head := NULL;
    WHEN 'tombs' THEN
        DELETE FROM dibs.tombs AS b
        WHERE b.key = book.key AND b.expires = e.expires AND b.id = e.id;
        book.tombs := book.tombs - 1;
    END CASE;
    t.book := book;
    RETURN t;
END $$;

-- With these slots marked; null of null.
CREATE FUNCTION dibs.mark_slots(taken bytea, slots integer[], is_taken boolean) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    slot integer;
BEGIN
    IF taken IS NOT NULL THEN
        FOREACH slot IN ARRAY slots LOOP
            taken := set_bit(taken, slot, is_taken::integer);
        END LOOP;
    END IF;
    RETURN taken;
END $$;

-- With the slots that are taken, before the first free one is looked for. A key has no more holds then than slots.
CREATE FUNCTION dibs.with_taken(book dibs.keys) RETURNS dibs.keys LANGUAGE plpgsql AS $$
BEGIN
    IF book.taken IS NULL AND book.capacity BETWEEN 2 AND dibs.max_slots() THEN
        book.taken := dibs.mark_slots(decode(repeat('00', 128), 'hex'),
            ARRAY(SELECT unnest(h.slots) FROM dibs.holds_of(book) AS h), true);
    END IF;
    RETURN book;
END $$;

-- Write the key's own row, if it has changed.
CREATE FUNCTION dibs.flush(book dibs.keys, was dibs.keys, now double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF book.holds = 0 THEN
        book.taken := NULL;
    END IF;
    IF book.waiting = 0 AND book.holds = 0 AND book.tombs = 0 THEN
        book.due := coalesce(book.expires, 'Infinity');
    END IF;
    IF book IS DISTINCT FROM was THEN
        UPDATE dibs.keys AS k SET last = book.last, capacity = book.capacity,
            arrivals = book.arrivals, used = book.used, waiting = book.waiting, holds = book.holds,
            tombs = book.tombs, due = book.due, taken = book.taken, doubt = book.doubt, touched = now,
            id = book.id, owner = book.owner,
            token = book.token, units = book.units, slots = book.slots, ttl = book.ttl,
            expires = book.expires, state = book.state, seq = book.seq,
            lock_delay = book.lock_delay, bury = book.bury, since = book.since, note = book.note,
            detail = book.detail, inbox = book.inbox, address = book.address, trace = book.trace
        WHERE k.key = book.key;
    END IF;
END $$;
