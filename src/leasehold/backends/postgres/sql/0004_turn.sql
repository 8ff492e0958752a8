-- One command's turn at a book: `core/turn.py`, method by method, and `core/timing.py`.

-- Of an id as it really is: a NUL in it is stored as \x10 and 0, and a \x10 as \x10 and 1.
CREATE FUNCTION leasehold.fingerprint(lease_id text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT left(encode(sha256(CASE WHEN strpos(lease_id, E'\x10') = 0 THEN convert_to(lease_id, 'UTF8')
        ELSE decode(replace(replace(replace(lease_id, E'\\', E'\\\\'), E'\x10' || '0', '\000'),
            E'\x10' || '1', E'\x10'), 'escape') END), 'hex'), 24)
$$;

CREATE FUNCTION leasehold.many() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1073741824::bigint';

CREATE FUNCTION leasehold.burial() RETURNS double precision LANGUAGE sql IMMUTABLE AS
    'SELECT 60.0::double precision';

CREATE FUNCTION leasehold.front() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 4::bigint';

CREATE FUNCTION leasehold.claim_window(ttl double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS 'SELECT least(5.0::double precision, ttl)';

CREATE FUNCTION leasehold.sign_of_life_after(wait double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS 'SELECT wait / 3';

-- The fencing token after `last`: the store's wall clock, unless that can't be a time (the year 2200).
CREATE FUNCTION leasehold.next_token(last bigint, stamp bigint, floor bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(last + 1, floor + 1, CASE WHEN stamp <= 7258118400000000 THEN stamp ELSE 0 END)
$$;

-- ---- settling: what time alone has changed ----------------------------------------------------------

-- Strike out what has ended, then grant the head of the queue while it fits.
CREATE FUNCTION leasehold.settle(t leasehold.turn) RETURNS leasehold.turn LANGUAGE plpgsql AS $$
DECLARE
    over leasehold.entry[];
    e leasehold.entry;
    book leasehold.keys := t.book;
BEGIN
    IF book.due <= t.now THEN
        over := ARRAY(SELECT x FROM leasehold.ended(book, t.now) AS x);
        book.due := leasehold.next_due(book, t.now);
        t.book := book;
        FOREACH e IN ARRAY over LOOP
            t := leasehold.end_entry(t, e);
        END LOOP;
    END IF;
    WHILE (t.book).waiting > 0 AND NOT t.deferred LOOP
        t := leasehold.grant_next(t);
        EXIT WHEN NOT t.again;
    END LOOP;
    RETURN t;
END $$;

-- An entry's time is over; what follows counts from then, however late we look.
CREATE FUNCTION leasehold.end_entry(t leasehold.turn, e leasehold.entry) RETURNS leasehold.turn
LANGUAGE plpgsql AS $$
DECLARE
    late double precision := t.now - e.expires;
    ends_its_id boolean := e.what = 'hold' AND e.state IN ('unclaimed', 'revoked');
    bury double precision;
BEGIN
    IF e.what = 'hold' THEN
        IF e.state <> 'kept' AND e.lock_delay > late THEN
            t.free_in := least(t.free_in, e.lock_delay - late);
            bury := CASE WHEN ends_its_id THEN leasehold.burial() ELSE 0 END;
            RETURN leasehold.keep(t, e, e.lock_delay - late, bury);
        END IF;
        bury := CASE WHEN ends_its_id THEN leasehold.burial() ELSE e.bury END;
        IF bury > late THEN
            RETURN leasehold.bury(t, e.id, e, bury - late,
                CASE WHEN ends_its_id THEN e.state ELSE 'buried' END, e.detail);
        END IF;
    END IF;
    RETURN leasehold.remove(t, e);
END $$;

-- Grant the first place that speaks up, if it fits; tell whether to look again.
CREATE FUNCTION leasehold.grant_next(t leasehold.turn) RETURNS leasehold.turn LANGUAGE plpgsql AS $$
DECLARE
    book leasehold.keys := t.book;
    p leasehold.places;
BEGIN
    t := leasehold.with_head(t);
    IF (t.head).units <= book.capacity AND book.used + (t.head).units > book.capacity
        AND NOT leasehold.silent(t.head, t.now)
    THEN
        t.again := false;  -- as it is most of the time
        RETURN t;
    END IF;
    t.again := true;
    FOR p IN SELECT * FROM leasehold.places AS x WHERE x.key = book.key
        ORDER BY x.urgency, x.arrival
    LOOP
        IF p.units > book.capacity THEN
            RETURN leasehold.refuse_for_good(t, leasehold.entry(p));
        END IF;
        CONTINUE WHEN leasehold.silent(p, t.now);
        IF book.used + p.units > book.capacity THEN
            t.again := false;
            RETURN t;
        END IF;
        RETURN leasehold.push_grant(t, leasehold.entry(p));
    END LOOP;
    t.again := false;
    RETURN t;
END $$;

-- It was asked to speak up often, and let a whole claim window pass.
CREATE FUNCTION leasehold.silent(p leasehold.places, now double precision) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p.near AND now - (p.expires - p.ttl) > leasehold.claim_window(p.grant_ttl)
$$;

-- The capacity has shrunk below what this place asks for.
CREATE FUNCTION leasehold.refuse_for_good(t leasehold.turn, place leasehold.entry)
RETURNS leasehold.turn LANGUAGE plpgsql AS $$
BEGIN
    t := leasehold.bury(t, place.id, place, leasehold.burial(), 'too_large');
    RETURN leasehold.wake(t, place, 'refused');
END $$;

-- The place becomes a hold that stands for a claim window until its owner speaks.
CREATE FUNCTION leasehold.push_grant(t leasehold.turn, place leasehold.entry)
RETURNS leasehold.turn LANGUAGE plpgsql AS $$
DECLARE
    hold leasehold.entry := place;
BEGIN
    t := leasehold.take_tokens(t, place.tokens, place.floor);
    hold.stored := NULL;
    hold.what := 'hold';
    hold.token := t.granted;
    hold.slots := leasehold.free_slots(t.book, place.units, '{}');
    hold.ttl := leasehold.claim_window(place.grant_ttl);
    hold.expires := t.now + hold.ttl;
    hold.state := 'unclaimed';
    hold.seq := 0;
    hold.bury := 0;
    hold.since := t.stamp;
    hold.detail := '';
    t.free_in := least(t.free_in, hold.ttl);
    t := leasehold.put(leasehold.remove(t, place), hold);
    RETURN leasehold.wake(t, hold, 'granted');
END $$;

-- ---- units, tokens, slots ---------------------------------------------------------------------------

-- There is room, and nobody who speaks up waits for it.
CREATE FUNCTION leasehold.fits(t leasehold.turn, wanted bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    book leasehold.keys := t.book;
BEGIN
    IF book.used + wanted > book.capacity THEN
        RETURN false;
    END IF;
    RETURN book.waiting = 0 OR NOT EXISTS (SELECT FROM leasehold.places AS p
        WHERE p.key = book.key AND NOT leasehold.silent(p, t.now));
END $$;

-- Reserve `amount` tokens; `granted` is the first.
CREATE FUNCTION leasehold.take_tokens(t leasehold.turn, amount bigint, floor bigint)
RETURNS leasehold.turn LANGUAGE plpgsql AS $$
BEGIN
    t.granted := leasehold.next_token((t.book).last, t.stamp, floor);
    t.book.last := t.granted + amount - 1;
    RETURN t;
END $$;

-- `own` and the lowest free slots, `wanted` of them; none where units aren't numbered.
-- Of the first n + wanted slots, n that are taken leave enough: no longer list is ever made.
CREATE FUNCTION leasehold.free_slots(book leasehold.keys, wanted bigint, own integer[])
RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    taken integer[];
BEGIN
    IF book.capacity >= leasehold.many() THEN
        RETURN '{}';
    ELSIF book.capacity = 1 THEN
        RETURN '{0}';
    END IF;
    taken := ARRAY(SELECT unnest(h.slots) FROM leasehold.holds_of(book) AS h);
    RETURN ARRAY(
        SELECT slot FROM (
            SELECT unnest(own) AS slot
            UNION ALL
            (SELECT s FROM generate_series(0, least(book.capacity, cardinality(taken) + wanted)::int - 1)
                AS s WHERE s <> ALL (taken) ORDER BY s LIMIT greatest(wanted - cardinality(own), 0))
        ) AS slots ORDER BY slot);
END $$;

-- ---- lives ------------------------------------------------------------------------------------------

CREATE FUNCTION leasehold.longer(
    expires double precision, ttl double precision, now double precision, seconds double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(seconds, least(expires - now, ttl))
$$;

-- Let an entry live `seconds` longer from now, or as long as it would anyway; `left_over` is how long.
CREATE FUNCTION leasehold.extend(t leasehold.turn, e leasehold.entry, seconds double precision)
RETURNS leasehold.turn LANGUAGE plpgsql AS $$
BEGIN
    t.left_over := leasehold.longer(e.expires, e.ttl, t.now, seconds);
    e.ttl := t.left_over;
    e.expires := t.now + t.left_over;
    RETURN leasehold.put(t, e);
END $$;

-- The hold is its owner's for `seconds` from now.
CREATE FUNCTION leasehold.claim(t leasehold.turn, hold leasehold.entry, seconds double precision)
RETURNS leasehold.turn LANGUAGE plpgsql AS $$
BEGIN
    hold.state := 'held';
    t := leasehold.extend(t, hold, seconds);
    t.reply := leasehold.granted(hold.token, hold.slots, t.left_over);
    RETURN t;
END $$;

-- The owner of a place is heard: it may be its turn already, and no push is needed then.
CREATE FUNCTION leasehold.speak_up(t leasehold.turn, place leasehold.entry, seconds double precision)
RETURNS leasehold.turn LANGUAGE plpgsql AS $$
DECLARE
    ahead bigint;
BEGIN
    IF place.units > (t.book).capacity THEN
        t := leasehold.bury(t, place.id, place, leasehold.burial(), 'too_large');
        t.reply := leasehold.too_large();
        RETURN t;
    END IF;
    ahead := leasehold.ahead_of(t.book, place);
    place.near := ahead < leasehold.front();
    t := leasehold.extend(t, place, place.ttl);
    place.ttl := t.left_over;
    RETURN leasehold.in_line(t, place, ahead, seconds);
END $$;

-- A new place joins the queue, unless it is its turn at once.
CREATE FUNCTION leasehold.queue_up(t leasehold.turn, place leasehold.entry) RETURNS leasehold.turn
LANGUAGE plpgsql AS $$
DECLARE
    ahead bigint := leasehold.ahead_of_new(t.book, place);
BEGIN
    place.near := ahead < leasehold.front();
    t := leasehold.put(t, place);
    RETURN leasehold.in_line(t, place, ahead, place.grant_ttl);
END $$;

-- Where a place stands whose owner has just been heard.
CREATE FUNCTION leasehold.in_line(
    t leasehold.turn, place leasehold.entry, ahead bigint, seconds double precision
) RETURNS leasehold.turn LANGUAGE plpgsql AS $$
DECLARE
    waiting integer := (t.book).waiting;
    e leasehold.entry;
BEGIN
    t := leasehold.settle(t);
    IF (t.book).waiting <> waiting THEN
        e := leasehold.get(t, place.id);
        IF e.what = 'hold' THEN
            RETURN leasehold.claim(t, e, seconds);
        END IF;
        ahead := leasehold.ahead_of(t.book, place);
    END IF;
    t.reply := json_build_array('Queued', ahead, leasehold.recheck_in(t, place, ahead), t.now);
    RETURN t;
END $$;

-- When its owner should speak again: the head also when units come free by time, and one from farther back
-- that came upon such when those that were granted or closed then are free again.
CREATE FUNCTION leasehold.recheck_in(t leasehold.turn, place leasehold.entry, ahead bigint)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    often double precision;
BEGIN
    IF NOT place.near THEN
        RETURN least(place.ttl / 3, t.free_in);
    END IF;
    often := leasehold.sign_of_life_after(leasehold.claim_window(place.grant_ttl));
    IF ahead > 0 THEN
        RETURN often;
    END IF;
    RETURN least(often, greatest(leasehold.first_release(t.book) - t.now, 0));
END $$;

-- The units of a hold that is over stay taken, by nobody.
CREATE FUNCTION leasehold.keep(
    t leasehold.turn, hold leasehold.entry, seconds double precision, bury double precision
) RETURNS leasehold.turn LANGUAGE plpgsql AS $$
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
    RETURN leasehold.put(t, hold);
END $$;

-- Remember that an id has ended. `was` is what it had, or null.
CREATE FUNCTION leasehold.bury(
    t leasehold.turn, entry_id text, was leasehold.entry, seconds double precision,
    reason text DEFAULT 'buried', detail text DEFAULT ''
) RETURNS leasehold.turn LANGUAGE plpgsql AS $$
DECLARE
    tomb leasehold.entry;
BEGIN
    IF was.stored IS NOT NULL THEN
        t := leasehold.remove(t, was);
    END IF;
    tomb.what := 'tomb';
    tomb.id := entry_id;
    tomb.ttl := seconds;
    tomb.expires := t.now + seconds;
    tomb.reason := reason;
    tomb.detail := detail;
    RETURN leasehold.put(t, tomb);
END $$;

-- ---- wakeups ----------------------------------------------------------------------------------------

-- Whoever has become the head must learn when time alone could change its answer.
CREATE FUNCTION leasehold.wake_new_head(t leasehold.turn, old_id text) RETURNS leasehold.turn
LANGUAGE plpgsql AS $$
BEGIN
    t := leasehold.with_head(t);
    IF (t.book).waiting > 0 AND (t.head).id IS DISTINCT FROM old_id THEN
        RETURN leasehold.wake(t, leasehold.entry(t.head), 'head');
    END IF;
    RETURN t;
END $$;

-- Units came free in a transaction that has not ended: whoever is in front asks for them when it has. A grant
-- would be heard of only then, and might be over by that time.
CREATE FUNCTION leasehold.wake_front(t leasehold.turn) RETURNS leasehold.turn LANGUAGE plpgsql AS $$
DECLARE
    place leasehold.places;
BEGIN
    FOR place IN SELECT * FROM leasehold.places AS p WHERE p.key = (t.book).key
        ORDER BY p.urgency, p.arrival LIMIT leasehold.front()
    LOOP
        t := leasehold.wake(t, leasehold.entry(place), 'head');
    END LOOP;
    RETURN t;
END $$;

CREATE FUNCTION leasehold.wake(
    t leasehold.turn, e leasehold.entry, event text, detail text DEFAULT ''
) RETURNS leasehold.turn LANGUAGE plpgsql AS $$
DECLARE
    is_grant boolean := event = 'granted';
BEGIN
    IF e.id IS NOT DISTINCT FROM t.caller OR e.inbox = '' THEN
        RETURN t;  -- whoever is answered needs no push, and who has no inbox can't get one
    END IF;
    t.wakeups := t.wakeups || ROW(
        leasehold.fingerprint(e.id), e.inbox, event, CASE WHEN is_grant THEN e.token ELSE 0 END,
        CASE WHEN is_grant THEN e.slots ELSE '{}' END, t.now, CASE WHEN is_grant THEN e.ttl ELSE 0 END,
        detail)::leasehold.wakeup;
    RETURN t;
END $$;
