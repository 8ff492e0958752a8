-- Applying a batch of commands: in one call, and in one transaction.

-- ---- locking the rows of its keys ---------------------------------------------------------------------
--
-- All batches do it in the same order, so that they never deadlock: first they make what is missing, by
-- key, then they lock all of them, by key.

-- Keys that are not there begin above the tokens of all that were removed.
CREATE FUNCTION dibs.make_missing(keys bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    new bytea[];
    begun bigint;
BEGIN
    IF (SELECT count(*) FROM dibs.keys AS k WHERE k.key = ANY (keys)) = cardinality(keys) THEN
        RETURN;
    END IF;
    SELECT m.floor INTO begun FROM dibs.meta AS m WHERE m.one;
    WITH made AS (
        INSERT INTO dibs.keys AS k (key, last) SELECT x, begun FROM unnest(keys) AS x ORDER BY x
        ON CONFLICT DO NOTHING RETURNING k.key
    ) SELECT array_agg(made.key) INTO new FROM made;
    -- One may have been removed while we waited for that: its token is in the floor only now.
    UPDATE dibs.keys AS k SET last = m.floor FROM dibs.meta AS m
    WHERE m.one AND m.floor > begun AND k.key = ANY (new);
END $$;

-- Make and lock these, in order. Raises `lock_not_available` if one was removed in between.
CREATE FUNCTION dibs.lock_all(keys bytea[]) RETURNS dibs.keys[] LANGUAGE plpgsql AS $$
DECLARE
    locked dibs.keys[];
BEGIN
    PERFORM dibs.make_missing(keys);
    locked := ARRAY(SELECT k FROM dibs.keys AS k WHERE k.key = ANY (keys) ORDER BY k.key FOR UPDATE);
    IF cardinality(locked) < cardinality(keys) THEN
        RAISE EXCEPTION USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN locked;
END $$;

-- Batches hold a row for some milliseconds. A transaction of a user's, which took a lease inside, may hold
-- it for minutes, and is not waited for. Until the two are told apart no lock is held, so that nobody else
-- is kept waiting: what is locked to try is undone, by an error (ZDU01) that is caught.

-- Lock these in order, but for those that one transaction keeps.
CREATE FUNCTION dibs.lock_what_can_be(keys bytea[], look interval) RETURNS dibs.keys[] LANGUAGE plpgsql AS $$
DECLARE
    kept bytea[];
BEGIN
    FOR attempt IN 1..20 LOOP
        kept := dibs.kept_keys(keys, look);
        BEGIN
            PERFORM set_config('lock_timeout', '900ms', true);  -- our turn comes
            RETURN dibs.lock_all(ARRAY(SELECT x FROM unnest(keys) AS x WHERE x <> ALL (kept) ORDER BY x));
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN ARRAY(SELECT k FROM dibs.keys AS k
        WHERE k.key = ANY (keys) ORDER BY k.key FOR UPDATE SKIP LOCKED);
END $$;

-- Those that one transaction keeps while we look. It is known by its number (xmax), which stays the same,
-- while those of batches come and go.
CREATE FUNCTION dibs.kept_keys(keys bytea[], look interval) RETURNS bytea[] LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := clock_timestamp() + look;
    free bytea[];
    kept bytea[] := keys;
    seen text[] := ARRAY(SELECT (SELECT k.xmax::text FROM dibs.keys AS k WHERE k.key = x.key)
        FROM unnest(keys) WITH ORDINALITY AS x (key, n) ORDER BY x.n);
BEGIN
    LOOP
        free := dibs.can_be_locked(kept);
        SELECT coalesce(array_agg(x.key), '{}'), array_agg(x.locker) INTO kept, seen
        FROM unnest(kept, seen) AS x (key, locker)
        WHERE x.key <> ALL (free) AND x.locker IS NOT DISTINCT FROM
            (SELECT k.xmax::text FROM dibs.keys AS k WHERE k.key = x.key);
        EXIT WHEN cardinality(kept) = 0 OR clock_timestamp() > until;
        PERFORM pg_sleep(0.005);
    END LOOP;
    RETURN kept;
END $$;

-- Those that nobody has locked, nor is making, at this moment. None stays locked.
CREATE FUNCTION dibs.can_be_locked(keys bytea[]) RETURNS bytea[] LANGUAGE plpgsql AS $$
DECLARE
    wanted bytea;
    free bytea[];
BEGIN
    BEGIN
        free := ARRAY(SELECT k.key FROM dibs.keys AS k
            WHERE k.key = ANY (keys) ORDER BY k.key FOR UPDATE SKIP LOCKED);
        RAISE EXCEPTION USING ERRCODE = 'ZDU01';
    EXCEPTION WHEN SQLSTATE 'ZDU01' THEN
        NULL;
    END;
    FOR wanted IN SELECT x FROM unnest(keys) AS x
        WHERE NOT EXISTS (SELECT FROM dibs.keys AS k WHERE k.key = x) ORDER BY x
    LOOP
        BEGIN
            PERFORM dibs.make_missing(ARRAY[wanted]);
            RAISE EXCEPTION USING ERRCODE = 'ZDU01';
        EXCEPTION
            WHEN SQLSTATE 'ZDU01' THEN
                free := free || wanted;
            WHEN lock_not_available THEN
                NULL;
        END;
    END LOOP;
    RETURN free;
END $$;

-- ---- the batch ----------------------------------------------------------------------------------------

-- The commands of a batch, by key.
CREATE FUNCTION dibs.decode(commands jsonb) RETURNS dibs.command[] LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_array_length(commands) = 1 THEN
        RETURN ARRAY[dibs.command_of(1, commands -> 0)];
    END IF;
    RETURN ARRAY(SELECT x.c FROM (SELECT dibs.command_of(e.n, e.said) AS c
        FROM jsonb_array_elements(commands) WITH ORDINALITY AS e (said, n) OFFSET 0) AS x
        ORDER BY (x.c).key, (x.c).n);
END $$;

CREATE FUNCTION dibs.keys_of(batch dibs.command[]) RETURNS bytea[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT DISTINCT c.key FROM unnest(batch) AS c WHERE c.key IS NOT NULL ORDER BY c.key);
END $$;

-- For how long to look on before a key is called busy: briefly, since a client sends nothing else meanwhile,
-- and renews nothing; and well within the shortest ttl.
CREATE FUNCTION dibs.look_for(batch dibs.command[]) RETURNS interval LANGUAGE sql STABLE AS $$
    SELECT make_interval(secs => least(0.2, coalesce(min(c.ttl) / 24, 0.1))) FROM unnest(batch) AS c
    WHERE c.ttl IS NULL OR c.ttl > 0
$$;

CREATE FUNCTION dibs.busy() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT dibs.failed('busy',
        'a transaction that has not ended keeps this key locked: try again when it has')
$$;

-- Microseconds since 1970. Not by the transaction's now(), which stood still while we waited for locks.
CREATE FUNCTION dibs.wall_clock() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

CREATE FUNCTION dibs.answer(result dibs.outcome) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT '[[' || array_to_string(result.replies, ',') || '],[' || array_to_string(result.pushes, ',') || ']]'
$$;

-- Apply commands: an answer of JSON, with a list of replies and one of notifications for `own_inbox`. That
-- is null in a transaction of a user's own, where nobody is granted by notification.
--
-- First the rows of its keys are locked, in one order; then the clock is read; then all is applied. If a lock
-- does not come at once, that is undone, and done again without what a transaction keeps. If anything else
-- goes wrong, the batch goes the careful way: each command in a sub-transaction of its own.
--
-- What is set here has every session plan alike, however small the tables were when it planned.
CREATE FUNCTION dibs.apply(
    format integer, commands jsonb, own_inbox text,
    now double precision DEFAULT NULL, stamp bigint DEFAULT NULL
) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    began timestamptz := clock_timestamp();
    batch dibs.command[] := dibs.decode(commands);
    amount integer := cardinality(batch);
    replies text[] := array_fill(NULL::text, ARRAY[amount]);
    locked dibs.keys[];
    result dibs.outcome;
    c dibs.command;
    book dibs.keys;
BEGIN
    IF format <> 2 THEN
        RAISE EXCEPTION 'this database has format 2, and was asked for format %', format
            USING ERRCODE = 'ZDV01';
    ELSIF current_setting('synchronous_commit') IN ('off', 'local') THEN  -- a crash would forget a lease
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF amount = 1 THEN  -- the fast path: one command, which meets nobody
        c := batch[1];
        SELECT * INTO book FROM dibs.keys AS k WHERE k.key = c.key FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            locked := ARRAY[book];
            now := coalesce(now, date_part('epoch', clock_timestamp()));
            stamp := coalesce(stamp, dibs.wall_clock());
            IF book.waiting = 0 AND book.holds = 0 AND book.tombs = 0 AND dibs.flaw(c) IS NULL THEN
                IF c.kind = 'acquire' AND (book.hold).id IS NULL AND book.used = 0
                    AND c.units <= c.capacity AND book.last < 9007199254740992
                THEN
                    book.capacity := c.capacity;
                    book.last := dibs.next_token(book.last, stamp, c.floor);
                    book.taken := dibs.taken_slots(book);
                    book.hold := dibs.hold_of(dibs.place_of(c, now, stamp), book, 'held', c.ttl, now, stamp);
                    UPDATE dibs.keys AS k SET last = book.last, capacity = book.capacity, used = c.units,
                        due = now + c.ttl, touched = now, hold = book.hold
                    WHERE k.key = c.key;
                    RETURN '[[' || dibs.granted(book.hold) || '],[]]';
                ELSIF c.kind = 'release' AND (book.hold).id = c.id AND (book.hold).state <> 'retained'
                    AND book.due > now AND c.keep = 0 AND c.bury = 0
                THEN
                    UPDATE dibs.keys AS k SET used = 0, due = 'Infinity', touched = now, hold = NULL
                    WHERE k.key = c.key;
                    RETURN '[[["released"]],[]]';
                END IF;
            END IF;
        END IF;
    END IF;
    FOR attempt IN 1..2 LOOP
        BEGIN
            IF attempt = 2 THEN
                locked := dibs.lock_what_can_be(dibs.keys_of(batch), dibs.look_for(batch));
                replies := array_fill(dibs.busy(), ARRAY[amount]);
                batch := ARRAY(SELECT x FROM unnest(batch) AS x WHERE x.key IS NULL
                    OR x.key = ANY (ARRAY(SELECT l.key FROM unnest(locked) AS l)) ORDER BY x.key, x.n);
            ELSIF locked IS NULL THEN
                locked := dibs.lock_all(dibs.keys_of(batch));
            END IF;
            result := dibs.ledger(locked, batch, own_inbox, coalesce(now, date_part('epoch', clock_timestamp())),
                coalesce(stamp, dibs.wall_clock()), replies);
            RETURN dibs.answer(result);
        EXCEPTION
            WHEN lock_not_available THEN
                NULL;
            WHEN query_canceled THEN  -- also what a lock_timeout is called that fires as the lock comes
                IF attempt = 2 OR clock_timestamp() < began + interval '50 ms' THEN
                    RAISE;
                END IF;
            WHEN data_exception OR integrity_constraint_violation OR case_not_found
                OR internal_error THEN
                EXIT;
        END;
    END LOOP;
    RETURN dibs.apply_carefully(dibs.decode(commands), own_inbox, now, stamp);
END $$;

-- A corrupt row costs nobody else a lease.
CREATE FUNCTION dibs.apply_carefully(
    batch dibs.command[], own_inbox text, now double precision, stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    locked bytea[] := ARRAY(SELECT l.key FROM unnest(
        dibs.lock_what_can_be(dibs.keys_of(batch), dibs.look_for(batch))) AS l);
    c dibs.command;
    one dibs.outcome;
    result dibs.outcome := ROW(array_fill(dibs.busy(), ARRAY[cardinality(batch)]), '{}');
BEGIN
    now := coalesce(now, date_part('epoch', clock_timestamp()));
    stamp := coalesce(stamp, dibs.wall_clock());
    FOREACH c IN ARRAY batch LOOP
        IF c.key IS NULL OR c.key = ANY (locked) THEN
            one := dibs.apply_guarded(c, own_inbox, now, stamp);
            result.replies[c.n] := one.replies[c.n];
            result.pushes := result.pushes || one.pushes;
        END IF;
    END LOOP;
    RETURN dibs.answer(result);
END $$;

-- One command, on a key that is locked. If it fails, nothing of it was done.
CREATE FUNCTION dibs.apply_guarded(
    c dibs.command, own_inbox text, now double precision, stamp bigint
) RETURNS dibs.outcome LANGUAGE plpgsql AS $$
BEGIN
    RETURN dibs.ledger(ARRAY(SELECT k FROM dibs.keys AS k WHERE k.key = c.key), ARRAY[c],
        own_inbox, now, stamp, '{}');
EXCEPTION
    WHEN numeric_value_out_of_range THEN
        RETURN ROW(array_fill(dibs.failed('invalid', 'no row can hold this: ' || SQLERRM),
            ARRAY[c.n]), '{}'::text[]);
    WHEN data_exception OR integrity_constraint_violation OR case_not_found OR internal_error THEN
        RETURN ROW(array_fill(dibs.failed('corrupt',
            'what lies in the store for this key can''t be used: ' || SQLERRM), ARRAY[c.n]), '{}'::text[]);
END $$;
