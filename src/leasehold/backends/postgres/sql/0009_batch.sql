-- The commands of a batch, applied together: what is easy in one statement a kind for all keys, and the
-- rest key by key through the ledger. An error undoes all of it.

CREATE FUNCTION leasehold.decode(commands json) RETURNS leasehold.command[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT ROW(c.n, row_number() OVER (PARTITION BY c.key ORDER BY c.n) = 1, c.kind,
        decode(c.key, 'hex'), c.id, c.owner, c.ttl, c.units, c.capacity, c.queue, c.patience,
        c.priority, c.note, c.tokens, c.floor, c.lock_delay, c.inbox, c.keep, c.bury, c.seq, c.lease,
        c.reason, c.now, c.flaw)::leasehold.command
    FROM ROWS FROM (json_to_recordset(commands) AS (
        kind text, key text, id text, owner text, ttl double precision, units bigint,
        capacity bigint, queue boolean, patience double precision, priority bigint, note text,
        tokens bigint, floor bigint, lock_delay double precision, inbox text,
        keep double precision, bury double precision, seq bigint, lease text, reason text,
        now boolean, flaw text)) WITH ORDINALITY AS c (kind, key, id, owner, ttl, units, capacity,
        queue, patience, priority, note, tokens, floor, lock_delay, inbox, keep, bury, seq, lease,
        reason, now, flaw, n));
END $$;

-- Microseconds since 1970.
CREATE FUNCTION leasehold.wall_clock() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

-- A turn that begins now. Not by the transaction's now(), which stood still while we waited for locks.
CREATE FUNCTION leasehold.new_turn(now double precision, stamp bigint) RETURNS leasehold.turn
LANGUAGE plpgsql AS $$
DECLARE
    t leasehold.turn;
BEGIN
    t.now := coalesce(now, date_part('epoch', clock_timestamp()));
    t.stamp := coalesce(stamp, leasehold.wall_clock());
    t.wakeups := '{}';
    t.deferred := false;
    RETURN t;
END $$;

CREATE TYPE leasehold.outcome AS (replies text[], pushes text[]);

-- `patient` where the locks didn't come at once: whatever can't be locked is answered `busy`.
CREATE FUNCTION leasehold.apply_together(
    batch leasehold.command[], patient boolean, own_inbox text, now double precision, stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys bytea[] := ARRAY(SELECT DISTINCT x.key FROM unnest(batch) AS x ORDER BY x.key);
    amount bigint;
    calm bigint := 1;
    locked bytea[];
    t leasehold.turn;
    busy text[] := '{}';
    easy leasehold.answers := ROW('{}', '{}');
    rest leasehold.outcome;
BEGIN
    IF patient THEN
        locked := leasehold.lock_what_can_be(keys, leasehold.look_for(batch));
        busy := ARRAY(SELECT leasehold.answer(x.n, leasehold.busy())
            FROM unnest(batch) AS x WHERE x.key <> ALL (locked));
        batch := ARRAY(SELECT x FROM unnest(batch) AS x WHERE x.key = ANY (locked));
    ELSE
        PERFORM leasehold.make_missing(keys);
        SELECT count(*), count(*) FILTER (WHERE k.waiting = 0) INTO amount, calm
        FROM (SELECT x.waiting FROM leasehold.keys AS x
            WHERE x.key = ANY (keys) ORDER BY x.key FOR UPDATE) AS k;
        IF amount < cardinality(keys) THEN  -- one was thrown out before we could lock it
            RAISE EXCEPTION USING ERRCODE = 'lock_not_available';
        END IF;
    END IF;
    t := leasehold.new_turn(now, stamp);
    t.deferred := own_inbox IS NULL;
    IF calm > 0 THEN
        easy := leasehold.apply_easy(batch, t.now, t.stamp);
    END IF;
    rest := leasehold.apply_rest(batch, easy.done, t, own_inbox);
    RETURN leasehold.letter(busy || easy.replies || rest.replies, own_inbox, rest.pushes);
END $$;

-- All but what is done already.
CREATE FUNCTION leasehold.apply_rest(
    batch leasehold.command[], done integer[], t leasehold.turn, own_inbox text
) RETURNS leasehold.outcome LANGUAGE plpgsql AS $$
DECLARE
    c leasehold.command;
    was leasehold.keys;
    result leasehold.outcome := ROW('{}', '{}');
BEGIN
    IF cardinality(done) = cardinality(batch) THEN
        RETURN result;
    END IF;
    FOR c IN SELECT * FROM unnest(batch) AS x WHERE x.n <> ALL (done) ORDER BY x.key, x.n LOOP
        IF was.key IS DISTINCT FROM c.key THEN
            result.pushes := result.pushes || leasehold.close_book(t, was, own_inbox);
            was := leasehold.book_of(c.key);
            t.book := was;
            t.head := NULL;
            t.wakeups := '{}';
        END IF;
        t := leasehold.apply_one(t, c);
        result.replies := result.replies || leasehold.answer(c.n, t.reply);
    END LOOP;
    result.pushes := result.pushes || leasehold.close_book(t, was, own_inbox);
    RETURN result;
END $$;

-- Write what has become of a key, and tell whoever should know.
CREATE FUNCTION leasehold.close_book(t leasehold.turn, was leasehold.keys, own_inbox text)
RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF was.key IS NULL THEN
        RETURN '{}';
    END IF;
    PERFORM leasehold.flush(t.book, was, t.now);
    RETURN leasehold.post(t, own_inbox);
END $$;

CREATE FUNCTION leasehold.busy() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT leasehold.failed('busy',
        'a transaction that has not ended keeps this key locked: try again when it has')
$$;

-- The key's own row. It is locked by now.
CREATE FUNCTION leasehold.book_of(wanted bytea) RETURNS leasehold.keys LANGUAGE plpgsql AS $$
DECLARE
    book leasehold.keys;
BEGIN
    SELECT * INTO STRICT book FROM leasehold.keys AS k WHERE k.key = wanted;
    PERFORM leasehold.must_add_up(book);
    RETURN book;
END $$;

-- What a hand or a bug has made of it is not believed.
CREATE FUNCTION leasehold.must_add_up(book leasehold.keys) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF book.holds = 0 AND book.used <> coalesce(book.units, 0) THEN
        RAISE EXCEPTION '% units are taken, and its holds have %', book.used, coalesce(book.units, 0)
            USING ERRCODE = 'data_corrupted';
    END IF;
    IF num_nulls(book.id, book.owner, book.token, book.units, book.slots, book.ttl, book.expires,
            book.state, book.seq, book.lock_delay, book.bury, book.since, book.note, book.detail,
            book.inbox) NOT IN (0, 15)
        OR book.state NOT IN ('held', 'unclaimed', 'revoked', 'kept')
    THEN
        RAISE EXCEPTION 'the hold inside its row is no hold' USING ERRCODE = 'data_corrupted';
    END IF;
END $$;

-- ---- answers and pushes -----------------------------------------------------------------------------

CREATE FUNCTION leasehold.letter(replies text[], own_inbox text, pushes text[]) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT '{"replies":[' || array_to_string(replies, ',') || '],"inbox":' || to_json(coalesce(own_inbox, ''))
        || ',"wakeups":[' || array_to_string(pushes, ',') || ']}'
$$;

-- Send a turn's wakeups to the inboxes of others; those of `own_inbox` are returned.
CREATE FUNCTION leasehold.post(t leasehold.turn, own_inbox text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    w leasehold.wakeup;
    push text;
    own text[] := '{}';
BEGIN
    FOREACH w IN ARRAY t.wakeups LOOP
        push := leasehold.push((t.book).key, w);
        IF w.inbox = own_inbox THEN
            own := own || push;
        ELSIF octet_length(w.inbox) < 64 THEN  -- the length of a channel's name
            IF octet_length(push) >= 8000 THEN  -- whoever gets less must ask
                w.detail := left(w.detail, 200);
                w.token := 0;
                w.slots := '{}';
                push := leasehold.push((t.book).key, w);
            END IF;
            IF octet_length(push) < 8000 THEN
                PERFORM pg_notify(w.inbox, push);
            END IF;
        END IF;
    END LOOP;
    RETURN own;
END $$;

CREATE FUNCTION leasehold.push(key bytea, w leasehold.wakeup) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_array(encode(key, 'hex'), w.lease, w.event, w.token, w.slots, w.granted_at,
        w.wait, w.detail)::text
$$;
