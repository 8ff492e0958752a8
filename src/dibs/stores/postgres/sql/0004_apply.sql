-- Applying a batch of commands: in one call, and in one transaction.

-- ---- locking the rows of its keys ---------------------------------------------------------------------
--
-- All batches do it in the order of the keys, so they never deadlock: first they make what is missing, then
-- they lock all rows. Batches hold a row for some milliseconds. A user's own transaction can hold it for
-- minutes, and is not waited for. It marks its keys with advisory locks, so that others can tell.

CREATE FUNCTION dibs.advisory_lock(key bytea) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    $$ SELECT hashtextextended(encode(key, 'hex'), 1684628083) $$;

-- Make and lock these, in order. Raises `lock_not_available` if one was removed in between.
CREATE FUNCTION dibs.lock_all(keys bytea[], deferred boolean) RETURNS dibs.keys[] LANGUAGE plpgsql AS $$
DECLARE
    locked dibs.keys[];
    new bytea[];
    begun bigint;
BEGIN
    IF deferred THEN
        PERFORM pg_advisory_xact_lock_shared(dibs.advisory_lock(x)) FROM unnest(keys) AS x;
    END IF;
    IF (SELECT count(*) FROM dibs.keys AS k WHERE k.key = ANY (keys)) < cardinality(keys) THEN
        -- Keys that are not there begin above the tokens of all that were removed.
        SELECT m.floor INTO begun FROM dibs.meta AS m WHERE m.one;
        WITH made AS (
            INSERT INTO dibs.keys AS k (key, last) SELECT x, begun FROM unnest(keys) AS x ORDER BY x
            ON CONFLICT DO NOTHING RETURNING k.key
        ) SELECT array_agg(made.key) INTO new FROM made;
        -- One may have been removed while we waited for that: its token is in the floor only now.
        UPDATE dibs.keys AS k SET last = m.floor FROM dibs.meta AS m
        WHERE m.one AND m.floor > begun AND k.key = ANY (new);
    END IF;
    locked := ARRAY(SELECT k FROM dibs.keys AS k WHERE k.key = ANY (keys) ORDER BY k.key FOR UPDATE);
    IF cardinality(locked) < cardinality(keys) THEN
        RAISE EXCEPTION USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN locked;
END $$;

CREATE FUNCTION dibs.keys_of(batch dibs.command[]) RETURNS bytea[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT DISTINCT c.key FROM unnest(batch) AS c ORDER BY c.key);
END $$;

-- Lock the keys of a batch in order, but for those that a user's transaction keeps longer than we look on.
-- Meanwhile nothing is locked, so that nobody else is kept waiting.
CREATE FUNCTION dibs.lock_available(batch dibs.command[], deferred boolean) RETURNS dibs.keys[]
LANGUAGE plpgsql AS $$
DECLARE
    keys bytea[] := dibs.keys_of(batch);
    seconds double precision := (SELECT least(0.2, coalesce(min(c.ttl) / 24, 0.1)) FROM unnest(batch) AS c);
    began timestamptz := clock_timestamp();
    kept bytea[];
BEGIN
    FOR attempt IN 1..20 LOOP
        LOOP
            kept := ARRAY(SELECT x FROM unnest(keys) AS x WHERE dibs.advisory_lock(x) = ANY (ARRAY(
                SELECT l.classid::bigint << 32 | l.objid::bigint FROM pg_locks AS l
                WHERE l.locktype = 'advisory' AND l.pid IS DISTINCT FROM pg_backend_pid() AND l.database
                    = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))));
            EXIT WHEN cardinality(kept) = 0 OR clock_timestamp() > began + make_interval(secs => seconds);
            PERFORM pg_sleep(0.005);
        END LOOP;
        BEGIN
            PERFORM set_config('lock_timeout', '900ms', true);  -- our turn comes
            RETURN dibs.lock_all(ARRAY(SELECT x FROM unnest(keys) AS x WHERE x <> ALL (kept) ORDER BY x), deferred);
        EXCEPTION WHEN lock_not_available THEN
            EXIT WHEN clock_timestamp() > began + interval '1500 ms';
        END;
    END LOOP;
    RETURN ARRAY(SELECT k FROM dibs.keys AS k
        WHERE k.key = ANY (keys) ORDER BY k.key FOR UPDATE SKIP LOCKED);
END $$;

-- The commands of a batch, by key.
CREATE FUNCTION dibs.decode(commands jsonb) RETURNS dibs.command[] LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_array_length(commands) = 1 THEN
        RETURN ARRAY[jsonb_populate_record(NULL::dibs.command, commands -> 0)];
    END IF;
    RETURN ARRAY(SELECT c FROM jsonb_populate_recordset(NULL::dibs.command, commands) AS c ORDER BY c.key, c.n);
END $$;

-- Microseconds since 1970. Not by the transaction's now(), which stood still while we waited for locks.
CREATE FUNCTION dibs.wall_clock() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

CREATE FUNCTION dibs.answer(result dibs.outcome) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT '[[' || array_to_string(result.replies, ',') || '],[' || array_to_string(result.notifications, ',') || ']]'
$$;

-- Apply commands: an answer of JSON, with a list of replies and one of notifications for `own_inbox`. That
-- is null in a user's own transaction, where nobody is granted by notification.
--
-- First the rows of its keys are locked, then the clock is read, then all is applied. If anything goes wrong,
-- or a lock does not come at once, that is undone, and the batch goes the careful way. The settings make every
-- session plan alike, however small the tables were when it planned.
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
    locked dibs.keys[];
    book dibs.keys;
BEGIN
    IF format <> 3 THEN
        RAISE EXCEPTION 'this database has format 3, and was asked for format %', format
            USING ERRCODE = 'ZDV01';
    ELSIF current_setting('synchronous_commit') IN ('off', 'local') THEN  -- a crash would forget a lease
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF cardinality(batch) = 1 AND own_inbox IS NOT NULL THEN  -- it needs no sub-transaction if all is well
        SELECT * INTO book FROM dibs.keys AS k WHERE k.key = (batch[1]).key FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            locked := ARRAY[book];
            now := coalesce(now, date_part('epoch', clock_timestamp()));
            stamp := coalesce(stamp, dibs.wall_clock());
            book := dibs.fast_path(book, batch[1], now, stamp);
            IF book.key IS NOT NULL THEN
                UPDATE dibs.keys AS k SET last = book.last, capacity = book.capacity, used = book.used,
                    due = book.due, touched = now, hold = book.hold
                WHERE k.key = book.key;
                RETURN '[[' || coalesce(dibs.granted(book.hold), '["released"]') || '],[]]';
            END IF;
        END IF;
    END IF;
    FOR attempt IN 1..2 LOOP
        BEGIN
            locked := CASE WHEN attempt = 2 THEN dibs.lock_available(batch, own_inbox IS NULL)
                ELSE coalesce(locked, dibs.lock_all(dibs.keys_of(batch), own_inbox IS NULL)) END;
            RETURN dibs.answer(dibs.ledger(locked, batch, own_inbox,
                coalesce(now, date_part('epoch', clock_timestamp())), coalesce(stamp, dibs.wall_clock())));
        EXCEPTION
            WHEN lock_not_available THEN
                NULL;
            WHEN query_canceled THEN  -- also what a lock_timeout is called that fires as the lock comes
                IF attempt = 2 OR clock_timestamp() < began + interval '50 ms' THEN
                    RAISE;
                END IF;
            WHEN data_exception OR integrity_constraint_violation OR case_not_found OR internal_error THEN
                EXIT;
        END;
    END LOOP;
    RETURN dibs.apply_carefully(batch, dibs.lock_available(batch, own_inbox IS NULL), own_inbox, now, stamp);
END $$;

-- Each command in a sub-transaction of its own, so that a corrupt row costs nobody else a lease.
CREATE FUNCTION dibs.apply_carefully(
    batch dibs.command[], locked dibs.keys[], own_inbox text, now double precision, stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys bytea[] := ARRAY(SELECT l.key FROM unnest(locked) AS l);
    c dibs.command;
    one dibs.outcome;
    result dibs.outcome := ROW('{}', '{}');
BEGIN
    FOREACH c IN ARRAY batch LOOP
        one := dibs.apply_guarded(c, keys, own_inbox, coalesce(now, date_part('epoch', clock_timestamp())),
            coalesce(stamp, dibs.wall_clock()));
        result.replies[c.n] := one.replies[c.n];
        result.notifications := result.notifications || one.notifications;
    END LOOP;
    RETURN dibs.answer(result);
END $$;

-- One command, if its key is among those that are locked. If it fails, nothing of it was done.
CREATE FUNCTION dibs.apply_guarded(
    c dibs.command, locked bytea[], own_inbox text, now double precision, stamp bigint
) RETURNS dibs.outcome LANGUAGE plpgsql AS $$
BEGIN
    RETURN dibs.ledger(ARRAY(SELECT k FROM dibs.keys AS k WHERE k.key = c.key AND k.key = ANY (locked)),
        ARRAY[c], own_inbox, now, stamp);
EXCEPTION WHEN data_exception OR integrity_constraint_violation OR case_not_found OR internal_error THEN
    RETURN ROW(array_fill(json_build_array('failed', 'corrupt',
        'what lies in the store for this key can''t be used: ' || SQLERRM)::text, ARRAY[c.n]), '{}'::text[]);
END $$;
