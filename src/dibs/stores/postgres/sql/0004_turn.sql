-- One command's turn at a book: `core/turn.py`, method by method, and `core/timing.py`.

-- An id as it really is: a NUL in it is stored as \x10 and 0, and a \x10 as \x10 and 1.
CREATE FUNCTION dibs.bytes_of(lease_id text) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN strpos(lease_id, E'\x10') = 0 THEN convert_to(lease_id, 'UTF8')
        ELSE decode(replace(replace(replace(lease_id, E'\\', E'\\\\'), E'\x10' || '0', '\000'),
            E'\x10' || '1', E'\x10'), 'escape') END
$$;

CREATE FUNCTION dibs.fingerprint(lease_id text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT left(encode(sha256(dibs.bytes_of(lease_id)), 'hex'), 24)
$$;

-- `core/proof.py`, by SHA-256.
CREATE FUNCTION dibs.proof(
    key bytea, lease_id text, token bigint, slots integer[], granted_at double precision,
    wait double precision
) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT encode(sha256(float8send(token) || float8send(granted_at) || float8send(wait)
        || float8send(length(key)) || key || convert_to(array_to_string(slots, ','), 'UTF8')
        || dibs.bytes_of(lease_id)), 'hex')
$$;

-- The largest capacity, and the largest one whose units are numbered.
CREATE FUNCTION dibs.many() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1048576::bigint';
CREATE FUNCTION dibs.max_holders() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 10000::bigint';
CREATE FUNCTION dibs.max_slots() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1024::bigint';

CREATE FUNCTION dibs.burial() RETURNS double precision LANGUAGE sql IMMUTABLE AS
    'SELECT 60.0::double precision';

CREATE FUNCTION dibs.front() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 16::bigint';

CREATE FUNCTION dibs.sight() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 64::bigint';

-- How many entries a command ends and waiters it grants or refuses; in a batch that has used up its own, few.
CREATE FUNCTION dibs.steps() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 64';
CREATE FUNCTION dibs.few_steps() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 4';
CREATE FUNCTION dibs.batch_steps() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 256';

CREATE FUNCTION dibs.claim_window(ttl double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS 'SELECT least(5.0::double precision, greatest(ttl / 2, least(ttl, 0.5)))';

CREATE FUNCTION dibs.sign_of_life_after(wait double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS 'SELECT wait / 3';

-- The fencing token after `last`: the store's wall clock, unless that can't be a time (the year 2200).
CREATE FUNCTION dibs.next_token(last bigint, stamp bigint, floor bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(last + 1, floor + 1, CASE WHEN stamp <= 7258118400000000 THEN stamp ELSE 0 END)
$$;

-- ---- settling: what time alone has changed ----------------------------------------------------------

-- End what time has ended, then grant the head of the queue while it fits: as far as `steps` go.
CREATE FUNCTION dibs.settle(t dibs.turn) RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    over dibs.entry[];
    e dibs.entry;
    book dibs.keys := t.book;
BEGIN
    IF book.due <= t.now AND t.steps > 0 THEN
        over := ARRAY(SELECT x FROM dibs.ended(book, t.now, t.steps + 1) AS x
            ORDER BY x.expires, x.id COLLATE "C" LIMIT t.steps + 1);
        book.due := least(dibs.next_due(book, t.now), (over[t.steps + 1]).expires);
        t.book := book;
        FOREACH e IN ARRAY over[1:t.steps] LOOP
            t := dibs.end_entry(t, e);
            t.steps := t.steps - 1;
        END LOOP;
    END IF;
    IF t.steps = 0 AND t.caller IS NOT NULL THEN
        e := dibs.get(t, t.caller);
        IF e.expires <= t.now THEN
            t := dibs.end_entry(t, e);
        END IF;
    END IF;
    WHILE t.steps > 0 AND (t.book).waiting > 0 AND NOT t.deferred LOOP
        t := dibs.grant_next(t);
        EXIT WHEN NOT t.again;
        t.steps := t.steps - 1;
    END LOOP;
    RETURN t;
END $$;

-- An entry's time is over; what follows counts from then, however late we look.
CREATE FUNCTION dibs.end_entry(t dibs.turn, e dibs.entry) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    late double precision := t.now - e.expires;
    ends_its_id boolean := e.what = 'hold' AND e.state IN ('unclaimed', 'revoked');
    bury double precision;
BEGIN
    IF e.what = 'hold' THEN
        IF e.state = 'unclaimed' THEN
            t.book.doubt := greatest((t.book).doubt, e.token);
        END IF;
        IF e.state <> 'kept' AND e.lock_delay > late THEN
            t.free_in := least(t.free_in, e.lock_delay - late);
            bury := CASE WHEN ends_its_id THEN dibs.burial() ELSE 0 END;
            RETURN dibs.keep(t, e, e.lock_delay - late, bury);
        END IF;
        bury := CASE WHEN ends_its_id THEN dibs.burial() ELSE e.bury END;
        IF bury > late THEN
            RETURN dibs.bury(t, e.id, e, bury - late,
                CASE WHEN ends_its_id THEN e.state ELSE 'buried' END, e.detail);
        END IF;
    END IF;
    RETURN dibs.remove(t, e);
END $$;

-- Grant the first waiter that is not passed over, if it fits; tell whether to look again.
CREATE FUNCTION dibs.grant_next(t dibs.turn) RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    book dibs.keys := t.book;
    p dibs.places;
BEGIN
    t := dibs.with_head(t);
    IF (t.head).units <= book.capacity AND book.used + (t.head).units > book.capacity
        AND (book.used >= book.capacity OR NOT dibs.silent(t.head, t.now, book.doubt))
    THEN
        t.again := false;  -- as it is most of the time
        RETURN t;
    END IF;
    t.again := true;
    FOR p IN SELECT * FROM dibs.places AS x WHERE x.key = book.key
        ORDER BY x.urgency, x.arrival LIMIT dibs.sight()
    LOOP
        IF p.units > book.capacity THEN
            RETURN dibs.refuse_for_good(t, dibs.entry(p));
        END IF;
        EXIT WHEN dibs.is_crowded(book);
        CONTINUE WHEN book.used < book.capacity AND dibs.silent(p, t.now, book.doubt);
        IF book.used + p.units > book.capacity THEN
            t.again := false;
            RETURN t;
        END IF;
        RETURN dibs.push_grant(t, dibs.entry(p));
    END LOOP;
    t.again := false;
    RETURN t;
END $$;

-- Its time is over, it missed its heartbeats, or was not heard of since a grant that nobody claimed.
CREATE FUNCTION dibs.silent(p dibs.places, now double precision, doubt bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p.expires <= now OR now - (p.expires - p.ttl) > p.silence OR p.seen < doubt
$$;

-- How many of the first `most` waiters are passed over, all before the first one that is not.
CREATE FUNCTION dibs.passed_over(t dibs.turn, most bigint, doubt bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    p dibs.places;
    passed bigint := 0;
BEGIN
    FOR p IN SELECT * FROM dibs.places AS x WHERE x.key = (t.book).key
        ORDER BY x.urgency, x.arrival LIMIT most
    LOOP
        EXIT WHEN NOT dibs.silent(p, t.now, doubt);
        passed := passed + 1;
    END LOOP;
    RETURN passed;
END $$;

-- The capacity has shrunk below what this place asks for.
CREATE FUNCTION dibs.refuse_for_good(t dibs.turn, place dibs.entry)
RETURNS dibs.turn LANGUAGE plpgsql AS $$
BEGIN
    t := dibs.bury(t, place.id, place, dibs.burial(), 'too_large');
    RETURN dibs.wake(t, place, 'refused');
END $$;

-- The place becomes a hold that stands for a claim window until its owner speaks.
CREATE FUNCTION dibs.push_grant(t dibs.turn, place dibs.entry)
RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    hold dibs.entry := place;
BEGIN
    t := dibs.take_token(t, place.floor);
    hold.stored := NULL;
    hold.what := 'hold';
    hold.token := t.granted;
    t.book := dibs.with_taken(t.book);
    hold.slots := dibs.free_slots(t.book, place.units, '{}');
    hold.ttl := dibs.claim_window(place.grant_ttl);
    hold.expires := t.now + hold.ttl;
    hold.state := 'unclaimed';
    hold.seq := 0;
    hold.bury := 0;
    hold.since := t.stamp;
    hold.detail := '';
    t.free_in := least(t.free_in, hold.ttl);
    t := dibs.put(dibs.remove(t, place), hold);
    RETURN dibs.wake(t, hold, 'granted');
END $$;

-- ---- units, tokens, slots ---------------------------------------------------------------------------

-- It has as many leases as a key may have.
CREATE FUNCTION dibs.is_crowded(book dibs.keys) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT book.holds + (book.id IS NOT NULL)::integer >= dibs.max_holders()
$$;

-- There is room, and all waiters in sight are passed over. A try passes only those that missed a heartbeat:
-- others that are in doubt may live.
CREATE FUNCTION dibs.fits(t dibs.turn, wanted bigint, is_try boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    book dibs.keys := t.book;
    in_sight bigint := least(book.waiting, dibs.sight());
BEGIN
    IF book.used + wanted > book.capacity OR dibs.is_crowded(book) THEN
        RETURN false;
    END IF;
    RETURN in_sight = 0
        OR dibs.passed_over(t, in_sight, CASE WHEN is_try THEN 0 ELSE book.doubt END) = in_sight;
END $$;

-- The next fencing token, in `granted`.
CREATE FUNCTION dibs.take_token(t dibs.turn, floor bigint)
RETURNS dibs.turn LANGUAGE plpgsql AS $$
BEGIN
    t.granted := dibs.next_token((t.book).last, t.stamp, floor);
    t.book.last := t.granted;
    RETURN t;
END $$;

-- `own` and the lowest free slots, `wanted` of them; none where units aren't numbered.
CREATE FUNCTION dibs.free_slots(book dibs.keys, wanted bigint, own integer[])
RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    slots integer[] := own;
BEGIN
    IF book.capacity > dibs.max_slots() THEN
        RETURN '{}';
    ELSIF book.capacity = 1 THEN
        RETURN '{0}';
    END IF;
    FOR slot IN 0 .. book.capacity::integer - 1 LOOP
        EXIT WHEN cardinality(slots) >= wanted;
        IF get_bit(book.taken, slot) = 0 AND slot <> ALL (own) THEN
            slots := slots || slot;
        END IF;
    END LOOP;
    RETURN ARRAY(SELECT unnest(slots) AS slot ORDER BY slot);
END $$;

-- ---- lives ------------------------------------------------------------------------------------------

CREATE FUNCTION dibs.longer(
    expires double precision, ttl double precision, now double precision, seconds double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(seconds, least(expires - now, ttl))
$$;

-- Let an entry live `seconds` longer from now, or as long as it would anyway; `left_over` is how long.
CREATE FUNCTION dibs.extend(t dibs.turn, e dibs.entry, seconds double precision)
RETURNS dibs.turn LANGUAGE plpgsql AS $$
BEGIN
    t.left_over := dibs.longer(e.expires, e.ttl, t.now, seconds);
    e.ttl := t.left_over;
    e.expires := t.now + t.left_over;
    RETURN dibs.put(t, e);
END $$;

-- The hold is its owner's for `seconds` from now.
CREATE FUNCTION dibs.claim(t dibs.turn, hold dibs.entry, seconds double precision)
RETURNS dibs.turn LANGUAGE plpgsql AS $$
BEGIN
    hold.state := 'held';
    t := dibs.extend(t, hold, seconds);
    t.reply := dibs.granted(hold.token, hold.slots, t.left_over);
    RETURN t;
END $$;

-- The owner of a place is heard: it may be its turn already, and no push is needed then.
CREATE FUNCTION dibs.speak_up(t dibs.turn, place dibs.entry, seconds double precision)
RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    ahead bigint;
BEGIN
    IF place.units > (t.book).capacity THEN
        t := dibs.bury(t, place.id, place, dibs.burial(), 'too_large');
        t.reply := dibs.too_large();
        RETURN t;
    END IF;
    ahead := dibs.ahead_of(t.book, place);
    place := dibs.heard(t, place, ahead);
    t := dibs.extend(t, place, place.ttl);
    place.ttl := t.left_over;
    RETURN dibs.in_line(t, place, ahead, seconds);
END $$;

-- A new place joins the queue, unless it is its turn at once.
CREATE FUNCTION dibs.queue_up(t dibs.turn, place dibs.entry) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    ahead bigint := dibs.ahead_of_new(t.book, place);
BEGIN
    place := dibs.heard(t, place, ahead);
    t := dibs.put(t, place);
    RETURN dibs.in_line(t, place, ahead, place.grant_ttl);
END $$;

-- Where a place stands whose owner has just been heard.
CREATE FUNCTION dibs.in_line(
    t dibs.turn, place dibs.entry, ahead bigint, seconds double precision
) RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    waiting integer := (t.book).waiting;
    e dibs.entry;
BEGIN
    t := dibs.settle(t);
    IF NOT t.deferred AND dibs.fits(t, place.units, false) THEN
        e := dibs.get(t, place.id);
        IF e.what = 'place' THEN  -- from beyond what `settle` looks at
            t := dibs.push_grant(t, e);
        END IF;
    END IF;
    IF (t.book).waiting <> waiting THEN
        e := dibs.get(t, place.id);
        IF e.what = 'hold' THEN
            RETURN dibs.claim(t, e, seconds);
        END IF;
        ahead := dibs.ahead_of(t.book, place);
    END IF;
    t.reply := json_build_array('Queued', ahead, dibs.recheck_in(t, place, ahead), t.now);
    RETURN t;
END $$;

-- A heartbeat: its owner lives, and the next one is due by `recheck_in`.
CREATE FUNCTION dibs.heard(t dibs.turn, place dibs.entry, ahead bigint) RETURNS dibs.entry
LANGUAGE plpgsql AS $$
BEGIN
    place.silence := dibs.claim_window(place.grant_ttl);
    IF ahead >= dibs.front()
        AND ahead - dibs.passed_over(t, least(ahead, dibs.sight()), (t.book).doubt) >= dibs.front()
    THEN
        place.silence := 3 * place.silence;
    END IF;
    place.seen := (t.book).last;
    RETURN place;
END $$;

-- When its owner should send its next heartbeat: at once where `steps` ran out.
CREATE FUNCTION dibs.recheck_in(t dibs.turn, place dibs.entry, ahead bigint)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    wait double precision := dibs.claim_window(place.grant_ttl);
    often double precision := dibs.sign_of_life_after(wait);
    is_front boolean := place.silence = wait;
    free_in double precision;
BEGIN
    IF t.steps = 0 THEN
        RETURN 0;
    ELSIF is_front AND ahead > 0 THEN
        RETURN often;
    END IF;
    free_in := greatest(dibs.first_release(t.book) - t.now, 0);
    IF is_front THEN
        RETURN least(often, free_in);
    END IF;
    RETURN least(place.ttl / 3, t.free_in, wait + least(wait, free_in));
END $$;

-- The units of a hold that is over stay taken, by nobody.
CREATE FUNCTION dibs.keep(
    t dibs.turn, hold dibs.entry, seconds double precision, bury double precision
) RETURNS dibs.turn LANGUAGE plpgsql AS $$
BEGIN
    hold.owner := '';
    hold.ttl := seconds;
    hold.expires := t.now + seconds;
    hold.state := 'kept';
    hold.seq := 0;
    hold.lock_delay := 0;
    hold.bury := bury;
    hold.detail := '';
    hold.inbox := '';
    hold.address := '';
    hold.trace := '';
    RETURN dibs.put(t, hold);
END $$;

-- Remember that an id has ended. `was` is what it had, or null.
CREATE FUNCTION dibs.bury(
    t dibs.turn, entry_id text, was dibs.entry, seconds double precision,
    reason text DEFAULT 'buried', detail text DEFAULT ''
) RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    tomb dibs.entry;
BEGIN
    IF was.stored IS NOT NULL THEN
        t := dibs.remove(t, was);
    END IF;
    tomb.what := 'tomb';
    tomb.id := entry_id;
    tomb.ttl := seconds;
    tomb.expires := t.now + seconds;
    tomb.reason := reason;
    tomb.detail := detail;
    RETURN dibs.put(t, tomb);
END $$;

-- ---- wakeups ----------------------------------------------------------------------------------------

-- Whoever has become the head must learn when time alone could change its answer.
CREATE FUNCTION dibs.wake_new_head(t dibs.turn, old_id text) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
BEGIN
    t := dibs.with_head(t);
    IF (t.book).waiting > 0 AND (t.head).id IS DISTINCT FROM old_id THEN
        RETURN dibs.wake(t, dibs.entry(t.head), 'head');
    END IF;
    RETURN t;
END $$;

CREATE FUNCTION dibs.wake(
    t dibs.turn, e dibs.entry, event text, detail text DEFAULT ''
) RETURNS dibs.turn LANGUAGE plpgsql AS $$
DECLARE
    is_grant boolean := event = 'granted';
BEGIN
    IF e.id IS NOT DISTINCT FROM t.caller OR e.inbox = '' THEN
        RETURN t;  -- whoever is answered needs no push, and who has no inbox can't get one
    END IF;
    t.wakeups := t.wakeups || ROW(
        dibs.fingerprint(e.id), e.inbox, event, CASE WHEN is_grant THEN e.token ELSE 0 END,
        CASE WHEN is_grant THEN e.slots ELSE '{}' END, t.now, CASE WHEN is_grant THEN e.ttl ELSE 0 END,
        detail, CASE WHEN is_grant
            THEN dibs.proof((t.book).key, e.id, e.token, e.slots, t.now, e.ttl) ELSE '' END)::dibs.wakeup;
    RETURN t;
END $$;
