-- The ledger: `core/ledger.py`, rule by rule. A reply is a JSON array that begins with the name of its
-- class, and goes on with that class's fields.

CREATE TYPE dibs.command AS (
    n integer,          -- its number in the batch
    first boolean,      -- of its key in this batch
    kind text, key bytea, id text,
    owner text, ttl double precision, units bigint, capacity bigint, queue boolean,
    patience double precision, priority bigint, note text, floor bigint,
    lock_delay double precision, inbox text,            -- Acquire; Renew has ttl and inbox
    address text, trace text,                           -- Acquire
    keep double precision, bury double precision,       -- Release
    seq bigint,                                         -- Resize, with units
    lease text, reason text, at_once boolean,           -- Revoke
    flaw text           -- what its sender knows to be wrong with it
);

-- Apply one command to the book of its key.
CREATE FUNCTION dibs.apply_one(t dibs.turn, c dibs.command) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    flaw text := dibs.flaw(c);
    first text;
    allowed integer;
BEGIN
    IF flaw IS NOT NULL THEN
        t.reply := dibs.failed('invalid', flaw);
        RETURN t;
    END IF;
    IF t.deferred AND c.kind = 'acquire' AND (t.book).waiting > 0
        AND current_setting('transaction_isolation') <> 'read committed'
    THEN
        t.reply := dibs.failed('busy', 'others wait for this key, and a transaction at this isolation '
            || 'level can''t see which of them are alive: use READ COMMITTED');
        RETURN t;
    END IF;
    t.caller := c.id;
    t.free_in := NULL;
    allowed := greatest(least(t.batch_steps, dibs.steps()), dibs.few_steps());
    t.steps := allowed;
    t := dibs.with_head(t);
    first := (t.head).id;
    t := dibs.settle(t);
    CASE c.kind
    WHEN 'acquire' THEN t := dibs.acquire(t, c);
    WHEN 'renew' THEN t := dibs.renew(t, c);
    WHEN 'release' THEN t := dibs.release(t, c);
    WHEN 'resize' THEN t := dibs.resize(t, c);
    WHEN 'inspect' THEN t := dibs.inspect(t);
    WHEN 'revoke' THEN t := dibs.revoke_holds(t, c);
    END CASE;
    t := dibs.settle(t);
    t.batch_steps := t.batch_steps - (allowed - t.steps);
    RETURN dibs.wake_new_head(t, first);
END $$;

-- What is wrong with a command that no client of ours would send. (NaN is greater than Infinity here, and
-- what is compared with null is neither true nor false.)
CREATE FUNCTION dibs.flaw(c dibs.command) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
    WHEN c.flaw IS NOT NULL THEN c.flaw
    WHEN num_nulls(c.kind, c.key) > 0 OR c.kind <> 'inspect' AND CASE c.kind
        WHEN 'acquire' THEN num_nulls(c.id, c.owner, c.ttl, c.units, c.capacity, c.queue, c.patience,
            c.priority, c.note, c.floor, c.lock_delay, c.inbox, c.address, c.trace)
        WHEN 'renew' THEN num_nulls(c.id, c.ttl, c.inbox)
        WHEN 'release' THEN num_nulls(c.id, c.keep, c.bury)
        WHEN 'resize' THEN num_nulls(c.id, c.units, c.seq)
        WHEN 'revoke' THEN num_nulls(c.reason, c.at_once)
        ELSE 1 END > 0 THEN 'something is missing'
    WHEN c.kind = 'acquire' THEN CASE
        WHEN NOT (0 < c.ttl AND c.ttl < 'Infinity' AND 0 < c.patience AND c.patience < 'Infinity')
            THEN 'ttl and patience must be positive'
        WHEN c.units < 1 OR c.floor < 0 OR c.floor >= 9007199254740992
            THEN 'units must be at least 1, floor at least 0 and less than 2^53'
        WHEN NOT (0 <= c.lock_delay AND c.lock_delay < 'Infinity')
            THEN 'lock_delay must be finite and at least 0'
        WHEN c.units > dibs.many() OR c.capacity > dibs.many()
            THEN 'units and capacity must be at most ' || dibs.many() END
    WHEN c.kind = 'renew' THEN
        CASE WHEN NOT (0 < c.ttl AND c.ttl < 'Infinity') THEN 'ttl must be positive' END
    WHEN c.kind = 'resize' THEN
        CASE WHEN c.units < 1 THEN 'units must be at least 1'
        WHEN c.units > dibs.many() THEN 'units and capacity must be at most ' || dibs.many() END
    WHEN c.kind = 'release' AND NOT (0 <= c.keep AND c.keep < 'Infinity'
            AND 0 <= c.bury AND c.bury < 'Infinity')
        THEN 'keep and bury must be finite and at least 0'
    END
$$;

-- ---- Acquire ----------------------------------------------------------------------------------------

CREATE FUNCTION dibs.acquire(t dibs.turn, c dibs.command) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    e dibs.entry := dibs.get(t, c.id);
BEGIN
    IF e.what IS NOT NULL THEN
        RETURN dibs.acquire_again(t, c, e);
    END IF;
    IF c.units > c.capacity THEN
        t.reply := dibs.too_large();
        RETURN t;
    END IF;
    t.book.capacity := c.capacity;
    IF (t.book).waiting > 0 THEN
        t := dibs.settle(t);  -- a greater capacity lets the queue in first
    END IF;
    IF dibs.fits(t, c.units, NOT c.queue) THEN
        RETURN dibs.grant_units(t, c);
    END IF;
    IF NOT c.queue THEN
        t.reply := dibs.refuse(t);
        RETURN t;
    END IF;
    RETURN dibs.new_place(t, c);  -- rows don't bound a queue, so none is ever full
END $$;

-- A repeat: it renews a living hold, keeps a place alive, and never revives what has ended.
CREATE FUNCTION dibs.acquire_again(
    t dibs.turn, c dibs.command, e dibs.entry
) RETURNS dibs.turn LANGUAGE plpgsql AS $$
BEGIN
    IF e.what = 'tomb' AND e.reason = 'too_large' THEN
        t.reply := dibs.too_large();
        RETURN t;
    ELSIF e.what = 'tomb' OR e.what = 'hold' AND e.state IN ('kept', 'revoked') THEN
        t.reply := '["Gone"]';
        RETURN t;
    END IF;
    e.inbox := c.inbox;  -- its owner may have reconnected
    IF e.what = 'place' THEN
        RETURN dibs.speak_up(t, e, c.ttl);
    END IF;
    RETURN dibs.claim(t, e, c.ttl);
END $$;

CREATE FUNCTION dibs.grant_units(t dibs.turn, c dibs.command) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    hold dibs.entry;
BEGIN
    t := dibs.take_token(t, c.floor);
    hold.what := 'hold';
    hold.id := c.id;
    hold.owner := c.owner;
    hold.token := t.granted;
    hold.units := c.units;
    t.book := dibs.with_taken(t.book);
    hold.slots := dibs.free_slots(t.book, c.units, '{}');
    hold.ttl := c.ttl;
    hold.expires := t.now + c.ttl;
    hold.state := 'held';
    hold.seq := 0;
    hold.lock_delay := c.lock_delay;
    hold.bury := 0;
    hold.since := t.stamp;
    hold.note := c.note;
    hold.detail := '';
    hold.inbox := c.inbox;
    hold.address := c.address;
    hold.trace := c.trace;
    t := dibs.put(t, hold);
    t.reply := dibs.granted(hold.token, hold.slots, c.ttl);
    RETURN t;
END $$;

CREATE FUNCTION dibs.new_place(t dibs.turn, c dibs.command) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    place dibs.entry;
BEGIN
    t.book.arrivals := (t.book).arrivals + 1;
    place.what := 'place';
    place.id := c.id;
    place.owner := c.owner;
    place.units := c.units;
    place.urgency := -c.priority;
    place.arrival := (t.book).arrivals;
    place.grant_ttl := c.ttl;
    place.ttl := c.patience;
    place.expires := t.now + c.patience;
    place.floor := c.floor;
    place.lock_delay := c.lock_delay;
    place.since := t.stamp;
    place.note := c.note;
    place.inbox := c.inbox;
    place.address := c.address;
    place.trace := c.trace;
    RETURN dibs.queue_up(t, place);
END $$;

-- Not now: who is in the way, and when time alone could change that: at once where steps ran out.
CREATE FUNCTION dibs.refuse(t dibs.turn) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    again double precision := dibs.first_release(t.book) - t.now;
    closed boolean := (SELECT bool_and(h.state = 'kept') FROM dibs.first_to_end(t.book, 8) AS h);
BEGIN
    RETURN json_build_array('Refused', CASE WHEN closed THEN 'closed' ELSE 'held' END,
        dibs.holders_shown(t, NULL),
        CASE WHEN t.steps = 0 THEN 0 WHEN again < 'Infinity' THEN greatest(again, 0) ELSE 5 END);
END $$;

-- ---- Renew, Release ---------------------------------------------------------------------------------

CREATE FUNCTION dibs.renew(t dibs.turn, c dibs.command) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    e dibs.entry := dibs.get(t, c.id);
BEGIN
    IF c.inbox <> '' AND e.what IN ('hold', 'place') AND e.inbox <> c.inbox THEN
        e.inbox := c.inbox;
        t := dibs.put(t, e);
    END IF;
    IF e.what = 'hold' AND e.state = 'held' THEN
        t := dibs.extend(t, e, c.ttl);
        t.reply := '["Renewed",' || t.left_over || ']';
    ELSIF e.what = 'hold' AND e.state = 'unclaimed' THEN
        t := dibs.claim(t, e, c.ttl);
    ELSIF e.what = 'place' THEN
        t := dibs.speak_up(t, e, c.ttl);
        IF t.reply = dibs.too_large() THEN
            t.reply := dibs.lost('expired', 'too large');
        END IF;
    ELSIF e.state = 'revoked' OR e.reason = 'revoked' THEN
        t.reply := dibs.lost('revoked', e.detail);
    ELSE
        t.reply := dibs.lost();
    END IF;
    RETURN t;
END $$;

CREATE FUNCTION dibs.release(t dibs.turn, c dibs.command) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    e dibs.entry := dibs.get(t, c.id);
BEGIN
    t.reply := '["Unknown"]';
    IF e.what IN ('hold', 'place') THEN
        t.reply := '["Released"]';
    END IF;
    IF e.what = 'hold' AND e.state = 'kept' THEN
        IF c.bury > e.bury THEN
            e.bury := c.bury;
            RETURN dibs.put(t, e);
        END IF;
        RETURN t;  -- a repeat never extends it
    ELSIF e.what = 'hold' AND c.keep > 0 THEN
        RETURN dibs.keep(t, e, c.keep, c.bury);
    ELSIF e.what IN ('hold', 'place') THEN
        IF c.bury > 0 THEN
            RETURN dibs.bury(t, c.id, e, c.bury);
        END IF;
        RETURN dibs.remove(t, e);
    ELSIF e.what IS NULL AND c.bury > 0 THEN
        RETURN dibs.bury(t, c.id, NULL, c.bury);
    ELSIF c.bury > 0 THEN
        RETURN dibs.extend(t, e, c.bury);  -- its Acquire may have been sent again since
    END IF;
    RETURN t;
END $$;

-- ---- Resize -----------------------------------------------------------------------------------------

CREATE FUNCTION dibs.resize(t dibs.turn, c dibs.command) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    hold dibs.entry := dibs.get(t, c.id);
BEGIN
    IF hold.what IS DISTINCT FROM 'hold' OR hold.state = 'kept' THEN
        t.reply := dibs.lost();
        RETURN t;
    ELSIF hold.state = 'revoked' THEN
        t.reply := dibs.lost('revoked', hold.detail);
        RETURN t;
    END IF;
    hold.state := 'held';  -- its owner speaks, so it is claimed
    t := dibs.extend(t, hold, 0);
    hold.ttl := t.left_over;
    hold.expires := t.now + t.left_over;
    IF c.seq > hold.seq THEN
        hold.seq := c.seq;  -- also of what is refused: its late copy must not succeed
        t := dibs.set_units(t, hold, c.units);
        hold := dibs.get(t, c.id);
    END IF;
    IF c.seq = hold.seq AND c.units <> hold.units THEN
        t.reply := dibs.refuse_growth(t, hold, c.units);
    ELSE
        t.reply := dibs.granted(hold.token, hold.slots, t.left_over);
    END IF;
    RETURN t;
END $$;

-- Growing ignores the queue: who holds on would otherwise wait for those who wait for it.
CREATE FUNCTION dibs.set_units(t dibs.turn, hold dibs.entry, wanted bigint)
RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    grows boolean := wanted > hold.units;
    used bigint := (t.book).used - hold.units + wanted;
BEGIN
    IF grows AND used > (t.book).capacity THEN
        RETURN dibs.put(t, hold);
    END IF;
    IF grows THEN
        t.book := dibs.with_taken(t.book);
    END IF;
    t.book.taken := dibs.mark_slots((t.book).taken, hold.slots, false);
    IF grows THEN
        hold.slots := dibs.free_slots(t.book, wanted, hold.slots);
        t := dibs.take_token(t, 0);  -- more units are a new grant
        hold.token := t.granted;
    ELSE
        hold.slots := hold.slots[1:wanted::integer];
    END IF;
    t.book.taken := dibs.mark_slots((t.book).taken, hold.slots, true);
    t.book.used := used;
    hold.units := wanted;
    RETURN dibs.put(t, hold);
END $$;

CREATE FUNCTION dibs.refuse_growth(t dibs.turn, hold dibs.entry, wanted bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    again double precision;
BEGIN
    IF wanted > (t.book).capacity THEN
        RETURN dibs.too_large();
    END IF;
    again := (SELECT coalesce(min(h.expires) - t.now, 0)
        FROM dibs.first_to_end(t.book, 2) AS h WHERE h.id <> hold.id);
    RETURN json_build_array('Refused', 'held', dibs.holders_shown(t, hold.id), greatest(again, 0));
END $$;

-- ---- Revoke, Inspect --------------------------------------------------------------------------------

CREATE FUNCTION dibs.revoke_holds(t dibs.turn, c dibs.command) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    hit dibs.entry[] := ARRAY(SELECT h FROM dibs.holds_of(t.book) AS h
        WHERE h.state <> 'kept' AND (c.lease IS NULL OR c.lease = dibs.fingerprint(h.id)));
    hold dibs.entry;
    ends_in double precision := 0;
BEGIN
    FOREACH hold IN ARRAY hit LOOP
        t := dibs.wake(t, hold, 'revoked', c.reason);
        IF c.at_once THEN
            t := dibs.bury(t, hold.id, hold, dibs.burial(), 'revoked', c.reason);
        ELSE
            hold.state := 'revoked';
            hold.detail := c.reason;
            t := dibs.put(t, hold);
            ends_in := greatest(ends_in, hold.expires - t.now);
        END IF;
    END LOOP;
    t.reply := json_build_array('Revoked', cardinality(hit), ends_in);
    RETURN t;
END $$;

CREATE FUNCTION dibs.inspect(t dibs.turn) RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    book dibs.keys := t.book;
BEGIN
    t.reply := json_build_array('Status', book.capacity,
        coalesce((SELECT json_agg(dibs.holder_of(h, t.now, t.stamp) ORDER BY h.token)
            FROM dibs.first_to_end(book, 100) AS h), '[]'),
        coalesce((SELECT json_agg(dibs.waiter_of(p, t.stamp) ORDER BY p.urgency, p.arrival)
            FROM (SELECT * FROM dibs.places AS x WHERE x.key = book.key AND book.waiting > 0
                ORDER BY x.urgency, x.arrival LIMIT 100) AS p), '[]'),
        book.waiting, book.last, book.holds + (book.id IS NOT NULL)::integer, book.used);
    RETURN t;
END $$;
