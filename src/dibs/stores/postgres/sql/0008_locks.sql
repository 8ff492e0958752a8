-- Locking the rows of a batch's keys.
--
-- All batches do it in the same order, so that they never deadlock: first they make what is missing, by
-- key, then they lock all of them, by key.

-- Keys that aren't there begin above the tokens of all that were thrown out.
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
    -- One may have been thrown out while we waited for that: its token is in the floor only now.
    UPDATE dibs.keys AS k SET last = m.floor FROM dibs.meta AS m
    WHERE m.one AND m.floor > begun AND k.key = ANY (new);
END $$;

-- ---- locks that don't come at once ------------------------------------------------------------------
--
-- Batches hold a row for some milliseconds. A transaction of a user's, which took a lease inside, may hold
-- it for minutes, and is not waited for. Whoever tells the one from the other holds nothing meanwhile, so
-- that nobody else is kept waiting: what is locked to try is undone, by an error (ZDU01) that is caught.

-- Lock these in order, but for those that one transaction keeps. Returns what is locked.
CREATE FUNCTION dibs.lock_what_can_be(keys bytea[], look interval) RETURNS bytea[]
LANGUAGE plpgsql AS $$
DECLARE
    kept bytea[];
    free bytea[];
    locked bytea[];
BEGIN
    FOR attempt IN 1..20 LOOP
        kept := dibs.kept_keys(keys, look);
        free := ARRAY(SELECT x FROM unnest(keys) AS x WHERE x <> ALL (kept) ORDER BY x);
        BEGIN
            PERFORM dibs.make_missing(free);
            PERFORM set_config('lock_timeout', '900ms', true);  -- our turn comes
            locked := ARRAY(SELECT k.key FROM dibs.keys AS k
                WHERE k.key = ANY (free) ORDER BY k.key FOR UPDATE);
            IF cardinality(locked) = cardinality(free) THEN
                RETURN locked;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'lock_not_available';  -- one was thrown out before
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN ARRAY(SELECT k.key FROM dibs.keys AS k
        WHERE k.key = ANY (keys) ORDER BY k.key FOR UPDATE SKIP LOCKED);
END $$;

-- For how long to look on before a key is called busy: briefly, since whoever asks sends nothing else
-- meanwhile, and renews nothing; and well within the patience of whoever has a short ttl.
CREATE FUNCTION dibs.look_for(batch dibs.command[]) RETURNS interval LANGUAGE sql STABLE AS $$
    SELECT make_interval(secs => least(0.2, coalesce(min(c.ttl) / 24, 0.1))) FROM unnest(batch) AS c
    WHERE c.ttl IS NULL OR c.ttl > 0
$$;

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
