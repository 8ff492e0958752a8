-- Removing idle keys; and the fencing guard.

-- Look at the next `amount` keys: settle those that are due, and remove those that were idle for a minute.
-- Returns how many were removed. Tokens still rise, because new keys begin above.
CREATE FUNCTION dibs.sweep(
    amount integer DEFAULT 256, now double precision DEFAULT NULL, stamp bigint DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    look dibs.command;
    begun bytea;
    found dibs.keys[];
    book dibs.keys;
    removed integer := 0;
BEGIN
    SELECT m.swept INTO begun FROM dibs.meta AS m WHERE m.one FOR UPDATE SKIP LOCKED;
    IF begun IS NULL THEN
        RETURN 0;  -- another session does it
    END IF;
    found := ARRAY(SELECT k FROM dibs.keys AS k WHERE k.key > begun
        ORDER BY k.key LIMIT amount FOR UPDATE SKIP LOCKED);
    now := coalesce(now, date_part('epoch', clock_timestamp()));
    stamp := coalesce(stamp, dibs.wall_clock());
    look.n := 1;
    look.kind := 'inspect';
    FOREACH book IN ARRAY found LOOP
        IF book.due <= now THEN
            look.key := book.key;
            PERFORM dibs.apply_guarded(look, ARRAY[book.key], '', now, stamp);
        END IF;
    END LOOP;
    WITH gone AS (
        DELETE FROM dibs.keys AS k
        WHERE k.key = ANY (ARRAY(SELECT x.key FROM unnest(found) AS x)) AND k.touched <= now - 60
            AND (k.hold).id IS NULL AND k.used = 0 AND k.waiting = 0 AND k.holds = 0 AND k.tombstones = 0
        RETURNING k.last
    ), last AS (SELECT count(*) AS amount, max(gone.last) AS token FROM gone), kept AS (
        UPDATE dibs.meta AS m SET floor = greatest(m.floor, last.token),
            swept = CASE WHEN cardinality(found) < sweep.amount THEN ''
                ELSE (found[cardinality(found)]).key END
        FROM last WHERE m.one
    ) SELECT last.amount INTO removed FROM last;
    RETURN removed;
END $$;

-- A fencing guard for your own writes in this database: call it first in the transaction that writes.
--
-- It raises (SQLSTATE ZDF01) if a higher token has been seen for this key and slot. Otherwise it remembers the
-- token, and others wait until the transaction ends. So a holder that lost the lease without knowing it can't
-- write over what its successor wrote.
CREATE FUNCTION dibs.guard(key bytea, token bigint, slot integer DEFAULT 0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO dibs.fences AS f (key, slot, token) VALUES (guard.key, guard.slot, guard.token)
    ON CONFLICT ON CONSTRAINT fences_pkey DO UPDATE SET token = excluded.token
    WHERE f.token <= excluded.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease on % is no longer yours: token % is lower than one seen since',
            coalesce(nullif(encode(guard.key, 'escape'), ''), '(no key)'), guard.token
            USING ERRCODE = 'ZDF01', HINT = 'Give up: whoever holds the lease now has written already.';
    END IF;
END $$;

CREATE FUNCTION dibs.guard(key text, token bigint, slot integer DEFAULT 0) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS
    $$ SELECT dibs.guard(convert_to(key, 'UTF8'), token, slot) $$;
