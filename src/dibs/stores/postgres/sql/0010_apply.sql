-- A batch in one call.
--
-- `own_inbox` is null in a transaction of a user's own, where nobody is granted by push.
--
-- First its keys' rows are locked, in one order; then the clock is read; then all is applied. Should a
-- lock not come at once, that is undone, and done again without what somebody keeps. Should anything else
-- go wrong, the batch goes the careful way: each command in a sub-transaction of its own.
--
-- What is set here has every session plan alike, however small the tables were when it planned.

CREATE FUNCTION dibs.apply(
    format integer, commands json, own_inbox text,
    now double precision DEFAULT NULL, stamp bigint DEFAULT NULL, tried boolean DEFAULT false
) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    patient boolean;
    began timestamptz := clock_timestamp();
BEGIN
    PERFORM dibs.must_be(format);
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN  -- a crash would forget a lease
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    FOREACH patient IN ARRAY CASE WHEN tried THEN '{true}' ELSE '{false,true}' END::boolean[] LOOP
        BEGIN
            RETURN dibs.apply_together(dibs.decode(commands), patient, own_inbox, now, stamp);
        EXCEPTION
            WHEN lock_not_available THEN
                NULL;
            WHEN query_canceled THEN  -- also what a lock_timeout is called that fires as the lock comes
                IF patient OR clock_timestamp() < began + interval '50 ms' THEN
                    RAISE;
                END IF;
            WHEN data_exception OR integrity_constraint_violation OR case_not_found
                OR internal_error THEN
                EXIT;
        END;
    END LOOP;
    RETURN dibs.apply_carefully(commands, own_inbox, now, stamp);
END $$;

CREATE FUNCTION dibs.must_be(format integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF format <> 1 THEN
        RAISE EXCEPTION 'this database has format 1, and was asked for format %', format
            USING ERRCODE = 'ZDV01';
    END IF;
END $$;

-- It costs nobody else a lease when a command is flawed, or a key's rows are.
CREATE FUNCTION dibs.apply_carefully(
    commands json, own_inbox text, now double precision, stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    batch dibs.command[] := dibs.decode_each(commands);
    locked bytea[] := dibs.lock_what_can_be(ARRAY(
        SELECT DISTINCT x.key FROM unnest(batch) AS x WHERE x.key IS NOT NULL ORDER BY x.key),
        dibs.look_for(batch));
    t dibs.turn := dibs.new_turn(now, stamp);
    c dibs.command;
    one dibs.outcome;
    result dibs.outcome := ROW('{}', '{}');
BEGIN
    t.deferred := own_inbox IS NULL;
    FOREACH c IN ARRAY batch LOOP
        IF c.key IS NULL THEN
            one := ROW(ARRAY[dibs.answer(c.n, dibs.failed('invalid', c.flaw))], '{}');
        ELSIF c.key = ANY (locked) THEN
            one := dibs.apply_guarded(c, t, own_inbox);
        ELSE
            one := ROW(ARRAY[dibs.answer(c.n, dibs.busy())], '{}');
        END IF;
        result.replies := result.replies || one.replies;
        result.pushes := result.pushes || one.pushes;
    END LOOP;
    RETURN dibs.letter(result.replies, own_inbox, result.pushes);
END $$;

-- Commands, and such as have a flaw and no key where the texts or numbers are what no row can hold.
CREATE FUNCTION dibs.decode_each(commands json) RETURNS dibs.command[]
LANGUAGE plpgsql AS $$
DECLARE
    item json;
    c dibs.command;
    batch dibs.command[] := '{}';
BEGIN
    FOR item IN SELECT json_array_elements(commands) LOOP
        BEGIN
            c := (dibs.decode(json_build_array(item)))[1];
        EXCEPTION WHEN data_exception THEN
            c := NULL;
            c.flaw := 'no row can hold this: ' || SQLERRM;
        END;
        c.n := cardinality(batch) + 1;
        batch := batch || c;
    END LOOP;
    RETURN batch;
END $$;

-- One command; should it fail, nothing of it was done.
CREATE FUNCTION dibs.apply_guarded(
    c dibs.command, t dibs.turn, own_inbox text
) RETURNS dibs.outcome LANGUAGE plpgsql AS $$
BEGIN
    RETURN dibs.apply_rest(ARRAY[c], '{}', t, own_inbox);
EXCEPTION
    WHEN numeric_value_out_of_range THEN
        RETURN ROW(ARRAY[dibs.answer(c.n, dibs.failed('invalid',
            'no row can hold this: ' || SQLERRM))], '{}'::text[]);
    WHEN data_exception OR integrity_constraint_violation OR case_not_found OR internal_error THEN
        RETURN ROW(ARRAY[dibs.answer(c.n, dibs.failed('corrupt',
            'what lies in the store for this key can''t be used: ' || SQLERRM))], '{}'::text[]);
END $$;
