-- What is done now and then: idle keys thrown out, and what there is listed.

-- Look at the next `amount` keys: settle those of which something has ended, and throw out those that
-- were idle for a minute. Returns how many were thrown out; tokens still rise, as new keys begin above.
CREATE FUNCTION dibs.sweep(
    amount integer DEFAULT 256, now double precision DEFAULT NULL, stamp bigint DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    t dibs.turn;
    begun bytea;
    found dibs.keys[];
    book dibs.keys;
    thrown_out integer := 0;
BEGIN
    SELECT m.swept INTO begun FROM dibs.meta AS m WHERE m.one FOR UPDATE SKIP LOCKED;
    IF begun IS NULL THEN
        RETURN 0;  -- somebody else is at it
    END IF;
    found := ARRAY(SELECT k FROM dibs.keys AS k WHERE k.key > begun
        ORDER BY k.key LIMIT amount FOR UPDATE SKIP LOCKED);
    t := dibs.new_turn(now, stamp);
    FOREACH book IN ARRAY found LOOP
        IF book.due <= t.now THEN
            PERFORM dibs.apply_guarded(dibs.look_at(book.key), t, '');
        END IF;
    END LOOP;
    WITH gone AS (
        DELETE FROM dibs.keys AS k
        WHERE k.key = ANY (ARRAY(SELECT x.key FROM unnest(found) AS x)) AND k.touched <= t.now - 60
            AND k.id IS NULL AND k.used = 0 AND k.waiting = 0 AND k.holds = 0 AND k.tombs = 0
        RETURNING k.last
    ), last AS (SELECT count(*) AS amount, max(gone.last) AS token FROM gone), kept AS (
        UPDATE dibs.meta AS m SET floor = greatest(m.floor, last.token),
            swept = CASE WHEN cardinality(found) < sweep.amount THEN ''
                ELSE (found[cardinality(found)]).key END
        FROM last WHERE m.one
    ) SELECT last.amount INTO thrown_out FROM last;
    RETURN thrown_out;
END $$;

CREATE FUNCTION dibs.look_at(wanted bytea) RETURNS dibs.command LANGUAGE plpgsql AS $$
DECLARE
    c dibs.command;
BEGIN
    c.kind := 'inspect';
    c.key := wanted;
    RETURN c;
END $$;

-- The next keys (in byte order, from `prefix`, after `after`, to `until`) that are held or waited for. No
-- more than 64 at a time, as their rows are locked: `next` tells where to go on, or is null.
CREATE FUNCTION dibs.scan(
    format integer, prefix bytea, after bytea, until bytea, amount integer,
    now double precision DEFAULT NULL, stamp bigint DEFAULT NULL
) RETURNS TABLE (letter text, keys text[], next text) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    found bytea[];
    enough integer := least(amount, 64);
BEGIN
    found := ARRAY(SELECT k.key FROM dibs.keys AS k
        WHERE k.key >= prefix AND (after IS NULL OR k.key > after)
            AND (until IS NULL OR k.key < until)
            AND (k.id IS NOT NULL OR k.waiting > 0 OR k.holds > 0)
        ORDER BY k.key LIMIT enough);
    keys := ARRAY(SELECT encode(x, 'hex') FROM unnest(found) AS x);
    letter := dibs.apply(format, coalesce((SELECT json_agg(
        json_build_object('kind', 'inspect', 'key', x)) FROM unnest(keys) AS x), '[]'), '', now, stamp);
    next := CASE WHEN cardinality(found) = enough THEN keys[enough] END;
    RETURN NEXT;
END $$;
