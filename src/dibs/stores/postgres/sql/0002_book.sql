-- The book of one key, `core/book.py` over rows: what a command reads of it, and how an entry is written.
--
-- A key's row is read once and written once for all commands of a batch on that key, and carried as `book`
-- in between. Other rows are written at once. There is no beat: it is for observers without the store's clock.

CREATE FUNCTION dibs.max_holders() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 10000';
CREATE FUNCTION dibs.max_slots() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1024::bigint';
CREATE FUNCTION dibs.counted_positions() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1000::bigint';
CREATE FUNCTION dibs.heartbeat_positions() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 16::bigint';
CREATE FUNCTION dibs.examined_positions() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 64::bigint';
CREATE FUNCTION dibs.tombstone_ttl() RETURNS double precision LANGUAGE sql IMMUTABLE AS 'SELECT 60::double precision';
CREATE FUNCTION dibs.claim_timeout(ttl double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS 'SELECT least(5::double precision, greatest(ttl / 2, least(ttl, 0.5)))';

-- The fencing token after `last`: the store's wall clock, unless that cannot be a time (the year 2200).
CREATE FUNCTION dibs.next_token(last bigint, stamp bigint, floor bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(last + 1, floor + 1, CASE WHEN stamp <= 7258118400000000 THEN stamp ELSE 0 END)
$$;

-- An id in bytes: a NUL in it is stored as \x10 and 0, and a \x10 as \x10 and 1.
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

-- ---- reading ------------------------------------------------------------------------------------------
--
-- An ORDER BY names the index that is meant: to a session that planned while there were few rows all of them
-- look alike. Queries are in PL/pgSQL, which keeps their plans, unless they are inlined.

-- The entry of an id, or null.
CREATE FUNCTION dibs.get(book dibs.keys, entry_id text) RETURNS dibs.entries LANGUAGE plpgsql AS $$
DECLARE
    e dibs.entries;
BEGIN
    IF (book.hold).id = entry_id THEN
        RETURN book.hold;
    ELSIF book.waiting > 0 OR book.holds > 0 OR book.tombstones > 0 THEN
        SELECT * INTO e FROM dibs.entries AS x
        WHERE x.key = book.key AND x.id >= entry_id ORDER BY x.id LIMIT 1;
    END IF;
    RETURN CASE WHEN e.id = entry_id THEN e END;
END $$;

-- The first waiter in the queue.
CREATE FUNCTION dibs.head_of(wanted bytea) RETURNS dibs.entries LANGUAGE plpgsql AS $$
DECLARE
    head dibs.entries;
BEGIN
    SELECT * INTO head FROM dibs.entries AS x WHERE x.key = wanted AND x.what = 'waiter'
    ORDER BY x.urgency, x.arrival LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'its row counts waiters, and there are none' USING ERRCODE = 'data_corrupted';
    END IF;
    RETURN head;
END $$;

-- The holds that expire first, and by their ids those that expire together.
CREATE FUNCTION dibs.first_to_end(book dibs.keys, amount integer) RETURNS SETOF dibs.entries
LANGUAGE sql STABLE AS $$
    SELECT h.* FROM (
        SELECT (book.hold).* WHERE (book.hold).id IS NOT NULL
        UNION ALL
        (SELECT * FROM dibs.entries AS x WHERE book.holds > 0 AND x.key = book.key AND x.what = 'hold'
            ORDER BY x.expires, x.id LIMIT amount)
    ) AS h ORDER BY h.expires, h.id COLLATE "C" LIMIT amount
$$;

-- When time alone first frees units, or infinity.
CREATE FUNCTION dibs.first_release(book dibs.keys) RETURNS double precision LANGUAGE plpgsql AS $$
BEGIN
    IF book.holds = 0 THEN
        RETURN coalesce((book.hold).expires, 'Infinity');
    END IF;
    RETURN (SELECT h.expires FROM dibs.first_to_end(book, 1) AS h);
END $$;

-- The first entries of each kind, by expiry, that expire by then.
CREATE FUNCTION dibs.by_expiry(book dibs.keys, until double precision, most integer)
RETURNS SETOF dibs.entries LANGUAGE sql STABLE AS $$
    SELECT (book.hold).* WHERE (book.hold).expires <= until
    UNION ALL
    SELECT e.* FROM unnest('{hold,waiter,tombstone}'::text[]) AS kind (what), LATERAL (
        SELECT * FROM dibs.entries AS x WHERE x.key = book.key AND x.what = kind.what
            AND x.expires <= until ORDER BY x.expires, x.id LIMIT most) AS e
$$;

-- How many waiters come before this one, up to `counted_positions`. A new one is the last of its urgency.
CREATE FUNCTION dibs.ahead_of(book dibs.keys, waiter dibs.entries, is_new boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF is_new AND (book.waiting = 0 OR waiter.urgency >= (SELECT p.urgency FROM dibs.entries AS p
        WHERE p.key = book.key AND p.what = 'waiter' ORDER BY p.urgency DESC, p.arrival DESC LIMIT 1))
    THEN
        RETURN least(book.waiting, dibs.counted_positions());
    END IF;
    RETURN count(*) FROM (SELECT FROM dibs.entries AS p
        WHERE p.key = book.key AND p.what = 'waiter'
            AND (p.urgency, p.arrival) < (waiter.urgency, waiter.arrival)
        ORDER BY p.urgency, p.arrival LIMIT dibs.counted_positions()) AS ahead;
END $$;

-- It missed its heartbeats, it expired, or its last heartbeat was before a grant that nobody claimed.
CREATE FUNCTION dibs.is_passed_over(p dibs.entries, now double precision, doubt bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p.expires <= now OR now - (p.expires - p.ttl) > p.silence OR p.seen < doubt
$$;

-- How many of the first `most` waiters are passed over, up to the first one that is not.
CREATE FUNCTION dibs.count_passed_over(wanted bytea, most bigint, now double precision, doubt bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    p dibs.entries;
    passed bigint := 0;
BEGIN
    FOR p IN SELECT * FROM dibs.entries AS x WHERE x.key = wanted AND x.what = 'waiter'
        ORDER BY x.urgency, x.arrival LIMIT most
    LOOP
        EXIT WHEN NOT dibs.is_passed_over(p, now, doubt);
        passed := passed + 1;
    END LOOP;
    RETURN passed;
END $$;

CREATE FUNCTION dibs.holding(book dibs.keys) RETURNS integer LANGUAGE sql IMMUTABLE AS
    $$ SELECT book.holds + ((book.hold).id IS NOT NULL)::integer $$;

-- There is room, and all waiters that are examined are passed over.
CREATE FUNCTION dibs.fits(book dibs.keys, wanted bigint, now double precision, doubt bigint)
RETURNS boolean LANGUAGE sql AS $$
    SELECT book.used + wanted <= book.capacity AND dibs.holding(book) < dibs.max_holders()
        AND (book.waiting = 0 OR least(book.waiting, dibs.examined_positions())
            = dibs.count_passed_over(book.key, dibs.examined_positions(), now, doubt))
$$;

-- ---- slots and entries --------------------------------------------------------------------------------

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

-- The slots that are taken, also if only the hold inside has any.
CREATE FUNCTION dibs.taken_slots(book dibs.keys) RETURNS bytea LANGUAGE plpgsql AS $$
BEGIN
    IF book.taken IS NULL AND book.capacity BETWEEN 2 AND dibs.max_slots() THEN
        RETURN dibs.mark_slots(decode(repeat('00', 128), 'hex'), ARRAY(SELECT unnest(h.slots)
            FROM dibs.first_to_end(book, dibs.max_holders()) AS h), true);
    END IF;
    RETURN book.taken;
END $$;

-- `own` and the lowest free slots, `wanted` of them; none where units are not numbered.
CREATE FUNCTION dibs.free_slots(book dibs.keys, wanted bigint, own integer[])
RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    slots integer[] := own;
    taken bytea;
BEGIN
    IF book.capacity > dibs.max_slots() THEN
        RETURN '{}';
    ELSIF book.capacity = 1 THEN
        RETURN '{0}';
    END IF;
    taken := dibs.taken_slots(book);
    FOR slot IN 0 .. book.capacity::integer - 1 LOOP
        EXIT WHEN cardinality(slots) >= wanted;
        IF get_bit(taken, slot) = 0 AND slot <> ALL (own) THEN
            slots := slots || slot;
        END IF;
    END LOOP;
    RETURN ARRAY(SELECT unnest(slots) AS slot ORDER BY slot);
END $$;

-- The hold that a waiter becomes, with the newest token and the lowest free slots.
CREATE FUNCTION dibs.hold_of(
    w dibs.entries, book dibs.keys, its_state text, seconds double precision,
    now double precision, stamp bigint
) RETURNS dibs.entries LANGUAGE sql AS $$
    SELECT ROW(w.key, w.id, 'hold', its_state, seconds, now + seconds, '',
        w.owner, w.units, w.lock_delay, stamp, w.note, w.inbox, w.address, w.trace,
        book.last, dibs.free_slots(book, w.units, '{}'), 0, 0,
        NULL, NULL, NULL, NULL, NULL, NULL)::dibs.entries
$$;

-- The units of a hold that has ended stay taken, by nobody.
CREATE FUNCTION dibs.retained(
    h dibs.entries, now double precision, seconds double precision, its_tombstone double precision
) RETURNS dibs.entries LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(h.key, h.id, 'hold', 'retained', seconds, now + seconds, h.detail,
        '', h.units, h.lock_delay, h.since, h.note, '', '', '',
        h.token, h.slots, h.seq, its_tombstone,
        NULL, NULL, NULL, NULL, NULL, NULL)::dibs.entries
$$;

CREATE FUNCTION dibs.tombstone(
    entry_id text, now double precision, seconds double precision, reason text, detail text DEFAULT ''
) RETURNS dibs.entries LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(NULL, entry_id, 'tombstone', reason, seconds, now + seconds, detail,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL)::dibs.entries
$$;

-- ---- writing ------------------------------------------------------------------------------------------

-- Put `new` where `old` was, the entry of the same id; null for nothing.
CREATE FUNCTION dibs.put(book dibs.keys, old dibs.entries, new dibs.entries) RETURNS dibs.keys
LANGUAGE plpgsql AS $$
DECLARE
    was_row boolean := old.id IS NOT NULL AND (book.hold).id IS DISTINCT FROM old.id;  -- of `entries`
BEGIN
    book.waiting := book.waiting + coalesce((new.what = 'waiter')::integer, 0)
        - coalesce((old.what = 'waiter')::integer, 0);
    book.tombstones := book.tombstones + coalesce((new.what = 'tombstone')::integer, 0)
        - coalesce((old.what = 'tombstone')::integer, 0);
    book.due := least(book.due, new.expires);
    IF old.what = 'hold' THEN
        book.used := book.used - old.units;
        book.taken := dibs.mark_slots(book.taken, old.slots, false);
        IF was_row THEN
            book.holds := book.holds - 1;
        ELSE
            book.hold := NULL;
        END IF;
    END IF;
    IF new.what = 'hold' THEN
        book.used := book.used + new.units;
        IF (book.hold).id IS NULL THEN
            book.taken := dibs.mark_slots(book.taken, new.slots, true);
            book.hold := new;
            new := NULL;
        ELSE
            book.taken := dibs.mark_slots(dibs.taken_slots(book), new.slots, true);
            book.holds := book.holds + 1;
        END IF;
    END IF;
    IF was_row THEN
        DELETE FROM dibs.entries AS e WHERE e.ctid = (SELECT x.ctid FROM dibs.entries AS x
            WHERE x.key = book.key AND x.id >= old.id ORDER BY x.id LIMIT 1) AND e.id = old.id;
    END IF;
    IF new.id IS NOT NULL THEN  -- no update: that would write every index too, for `expires` is in one
        new.key := book.key;
        INSERT INTO dibs.entries VALUES (new.*);
    END IF;
    RETURN book;
END $$;

-- Write a key's own row, if it has changed.
CREATE FUNCTION dibs.flush(book dibs.keys, was dibs.keys, now double precision)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF book.holds = 0 THEN
        book.taken := NULL;
    END IF;
    IF book.waiting = 0 AND book.holds = 0 AND book.tombstones = 0 THEN
        book.due := coalesce((book.hold).expires, 'Infinity');
    END IF;
    IF book IS DISTINCT FROM was THEN
        UPDATE dibs.keys AS k SET last = book.last, capacity = book.capacity,
            arrivals = book.arrivals, used = book.used, waiting = book.waiting, holds = book.holds,
            tombstones = book.tombstones, due = book.due, doubt = book.doubt, touched = now,
            taken = book.taken, hold = book.hold
        WHERE k.key = book.key;
    END IF;
END $$;

-- Raise an error for a key's row that a person or a bug has made inconsistent.
CREATE FUNCTION dibs.check_book(book dibs.keys) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    h dibs.entries := book.hold;
BEGIN
    IF book.holds = 0 AND book.used <> coalesce(h.units, 0) THEN
        RAISE EXCEPTION '% units are taken, and its holds have %', book.used, coalesce(h.units, 0)
            USING ERRCODE = 'data_corrupted';
    ELSIF num_nulls(h.id, h.owner, h.token, h.units, h.slots, h.ttl, h.expires, h.state, h.seq,
            h.lock_delay, h.tombstone, h.since, h.note, h.detail, h.inbox, h.address, h.trace) NOT IN (0, 17)
        OR h.what <> 'hold' OR h.state NOT IN ('held', 'unclaimed', 'revoked', 'retained')
    THEN
        RAISE EXCEPTION 'the hold inside its row is no hold' USING ERRCODE = 'data_corrupted';
    END IF;
END $$;

-- ---- what people see: ages and remaining times, never ids ---------------------------------------------

CREATE FUNCTION dibs.holder(h dibs.entries, now double precision, stamp bigint)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(CASE WHEN h.state = 'retained' THEN '' ELSE dibs.fingerprint(h.id) END,
        h.owner, h.token, h.units, h.slots, greatest(stamp - h.since, 0) / 1e6::double precision,
        greatest(h.expires - now, 0), h.note, h.state, h.address, h.trace)
$$;

-- A refusal: up to eight holders, but for the one that asks, and the seconds until units are free.
CREATE FUNCTION dibs.refused(
    book dibs.keys, reason text, asks text, free_in double precision, now double precision, stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN json_build_array('refused', reason, coalesce(json_agg(dibs.holder(h, now, stamp)), '[]'),
        greatest(free_in, 0))
    FROM (SELECT * FROM dibs.first_to_end(book, 9) AS x WHERE x.id IS DISTINCT FROM asks LIMIT 8) AS h;
END $$;

CREATE FUNCTION dibs.status(book dibs.keys, now double precision, stamp bigint) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN json_build_array('status', book.capacity,
        coalesce((SELECT json_agg(dibs.holder(h, now, stamp) ORDER BY h.token)
            FROM dibs.first_to_end(book, 100) AS h), '[]'),
        coalesce((SELECT json_agg(json_build_array(dibs.fingerprint(w.id), w.owner, w.units, -w.urgency,
                greatest(stamp - w.since, 0) / 1e6::double precision, w.note, w.address, w.trace)
                ORDER BY w.urgency, w.arrival)
            FROM (SELECT * FROM dibs.entries AS x
                WHERE x.key = book.key AND x.what = 'waiter' AND book.waiting > 0
                ORDER BY x.urgency, x.arrival LIMIT 100) AS w), '[]'),
        book.waiting, book.last, dibs.holding(book), book.used);
END $$;
