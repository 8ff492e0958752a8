-- The easy commands of a batch, all of a kind in one statement.
--
-- Easy is what meets nobody: the first command of its key, on a key of which nothing has ended and where
-- nobody waits. It does what the ledger would, with nothing to settle before and nobody to wake after.

CREATE TYPE dibs.answers AS (done integer[], replies text[]);

CREATE FUNCTION dibs.answer(n integer, reply text) RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT '[' || n || ',' || reply || ']' $$;

-- Rows are found by key first and then joined by their place (ctid), which no statistics can tempt the
-- planner to do in another way: a plan made while the table was empty must do when it is large.
CREATE FUNCTION dibs.apply_easy(
    batch dibs.command[], now double precision, stamp bigint
) RETURNS dibs.answers LANGUAGE plpgsql AS $$
DECLARE
    kinds text[] := ARRAY(SELECT DISTINCT c.kind FROM unnest(batch) AS c);
    kind text;
    more dibs.answers;
    result dibs.answers := ROW('{}', '{}');
BEGIN
    FOREACH kind IN ARRAY kinds LOOP
        CASE kind
        WHEN 'acquire' THEN more := dibs.easy_acquires(batch, now, stamp);
        WHEN 'release' THEN more := dibs.easy_releases(batch, now);
        WHEN 'renew' THEN more := dibs.easy_renewals(batch, now);
        ELSE CONTINUE;
        END CASE;
        result.done := result.done || more.done;
        result.replies := result.replies || more.replies;
    END LOOP;
    RETURN result;
END $$;

-- Of a key that nobody holds.
CREATE FUNCTION dibs.easy_acquires(
    batch dibs.command[], now double precision, now_stamp bigint
) RETURNS dibs.answers LANGUAGE plpgsql AS $$
DECLARE
    result dibs.answers;
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT c.*, (SELECT k.ctid FROM dibs.keys AS k WHERE k.key = c.key) AS at
        FROM unnest(batch) AS c
        WHERE c.first AND c.kind = 'acquire' AND dibs.flaw(c) IS NULL AND c.units <= c.capacity
    ), done AS (
        UPDATE dibs.keys AS k
        SET capacity = c.capacity, used = c.units, due = now + c.ttl, touched = now,
            last = dibs.next_token(k.last, now_stamp, c.floor),
            id = c.id, owner = c.owner,
            token = dibs.next_token(k.last, now_stamp, c.floor), units = c.units,
            slots = CASE WHEN c.capacity > dibs.max_slots() THEN '{}'
                WHEN c.units = 1 THEN '{0}'
                ELSE ARRAY(SELECT generate_series(0, c.units::integer - 1)) END,
            ttl = c.ttl, expires = now + c.ttl, state = 'held', seq = 0, lock_delay = c.lock_delay,
            bury = 0, since = now_stamp, note = c.note, detail = '', inbox = c.inbox,
            address = c.address, trace = c.trace
        FROM wanted AS c
        WHERE k.ctid = c.at AND k.id IS NULL AND k.used = 0 AND k.waiting = 0 AND k.holds = 0
            AND k.tombs = 0
        RETURNING c.n, k.token, k.slots, k.ttl
    )
    SELECT array_agg(done.n), array_agg(dibs.answer(done.n,
        dibs.granted(done.token, done.slots, done.ttl))) INTO result FROM done;
    RETURN result;
END $$;

-- Of the only hold there is.
CREATE FUNCTION dibs.easy_releases(batch dibs.command[], now double precision)
RETURNS dibs.answers LANGUAGE plpgsql AS $$
DECLARE
    result dibs.answers;
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT c.*, (SELECT k.ctid FROM dibs.keys AS k WHERE k.key = c.key) AS at
        FROM unnest(batch) AS c
        WHERE c.first AND c.kind = 'release' AND dibs.flaw(c) IS NULL AND c.keep = 0 AND c.bury = 0
    ), done AS (
        UPDATE dibs.keys AS k
        SET used = 0, due = 'Infinity', touched = now, id = NULL, owner = NULL, token = NULL,
            units = NULL, slots = NULL, ttl = NULL, expires = NULL, state = NULL, seq = NULL,
            lock_delay = NULL, bury = NULL, since = NULL, note = NULL, detail = NULL, inbox = NULL,
            address = NULL, trace = NULL
        FROM wanted AS c
        WHERE k.ctid = c.at AND k.id = c.id AND k.state IN ('held', 'unclaimed', 'revoked') AND k.due > now
            AND k.waiting = 0 AND k.holds = 0 AND k.tombs = 0
        RETURNING c.n
    )
    SELECT array_agg(done.n), array_agg(dibs.answer(done.n, '["Released"]')) INTO result
    FROM done;
    RETURN result;
END $$;

-- Of the hold in the key's own row.
CREATE FUNCTION dibs.easy_renewals(batch dibs.command[], now double precision)
RETURNS dibs.answers LANGUAGE plpgsql AS $$
DECLARE
    result dibs.answers;
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT c.*, (SELECT k.ctid FROM dibs.keys AS k WHERE k.key = c.key) AS at
        FROM unnest(batch) AS c
        WHERE c.first AND c.kind = 'renew' AND dibs.flaw(c) IS NULL
    ), done AS (
        UPDATE dibs.keys AS k
        SET ttl = dibs.longer(k.expires, k.ttl, now, c.ttl),
            expires = now + dibs.longer(k.expires, k.ttl, now, c.ttl),
            due = CASE WHEN k.holds = 0 AND k.tombs = 0
                THEN now + dibs.longer(k.expires, k.ttl, now, c.ttl)
                ELSE least(k.due, now + dibs.longer(k.expires, k.ttl, now, c.ttl)) END,
            touched = now, inbox = CASE WHEN c.inbox <> '' THEN c.inbox ELSE k.inbox END
        FROM wanted AS c
        WHERE k.ctid = c.at AND k.id = c.id AND k.state = 'held' AND k.due > now AND k.waiting = 0
        RETURNING c.n, k.ttl
    )
    SELECT array_agg(done.n), array_agg(dibs.answer(done.n, '["Renewed",' || done.ttl || ']'))
    INTO result FROM done;
    RETURN result;
END $$;
