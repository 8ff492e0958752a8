-- The commands of a batch, applied together: what is easy in one statement a kind for all keys, and the
-- rest key by key through the ledger. An error undoes all of it.

CREATE FUNCTION dibs.decode(commands json) RETURNS dibs.command[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT ROW(c.n, row_number() OVER (PARTITION BY c.key ORDER BY c.n) = 1, c.kind,
        decode(c.key, 'hex'), c.id, c.owner, c.ttl, c.units, c.capacity, c.queue, c.patience,
        c.priority, c.note, c.floor, c.lock_delay, c.inbox, c.address, c.trace, c.keep,
        c.bury, c.seq, c.lease,
        c.reason, c.now, c.flaw)::dibs.command
    FROM ROWS FROM (json_to_recordset(commands) AS (
        kind text, key text, id text, owner text, ttl double precision, units bigint,
        capacity bigint, queue boolean, patience double precision, priority bigint, note text,
        floor bigint, lock_delay double precision, inbox text,
        address text, trace text, keep double precision, bury double precision, seq bigint, lease text, reason text,
        now boolean, flaw text)) WITH ORDINALITY AS c (kind, key, id, owner, ttl, units, capacity,
        queue, patience, priority, note, floor, lock_delay, inbox, address, trace, keep, bury, seq, lease,
        reason, now, flaw, n));
END $$;

-- Microseconds since 1970.
CREATE FUNCTION dibs.wall_clock() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

-- A turn that begins now. Not by the transaction's now(), which stood still while we waited for locks.
CREATE FUNCTION dibs.new_turn(now double precision, stamp bigint) RETURNS dibs.turn
LANGUAGE plpgsql AS $$
DECLARE
    t dibs.turn;
BEGIN
    t.now := coalesce(now, date_part('epoch', clock_timestamp()));
    t.stamp := coalesce(stamp, dibs.wall_clock());
    t.wakeups := '{}';
    t.deferred := false;
    t.batch_steps := dibs.batch_steps();
    RETURN t;
END $$;

CREATE TYPE dibs.outcome AS (replies text[], pushes text[]);

-- `patient` where the locks didn't come at once: whatever can't be locked is answered `busy`.
CREATE FUNCTION dibs.apply_together(
    batch dibs.command[], patient boolean, own_inbox text, now double precision, stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys bytea[] := ARRAY(SELECT DISTINCT x.key FROM unnest(batch) AS x ORDER BY x.key);
    amount bigint;
    calm bigint := 1;
    locked bytea[];
    t dibs.turn;
    busy text[] := '{}';
    easy dibs.answers := ROW('{}', '{}');
    rest dibs.outcome;
BEGIN
    IF patient THEN
        locked := dibs.lock_what_can_be(keys, dibs.look_for(batch));
        busy := ARRAY(SELECT dibs.answer(x.n, dibs.busy())
            FROM unnest(batch) AS x WHERE x.key <> ALL (locked));
        batch := ARRAY(SELECT x FROM unnest(batch) AS x WHERE x.key = ANY (locked));
    ELSE
        PERFORM dibs.make_missing(keys);
        SELECT count(*), count(*) FILTER (WHERE k.waiting = 0) INTO amount, calm
        FROM (SELECT x.waiting FROM dibs.keys AS x
            WHERE x.key = ANY (keys) ORDER BY x.key FOR UPDATE) AS k;
        IF amount < cardinality(keys) THEN  -- one was thrown out before we could lock it
            RAISE EXCEPTION USING ERRCODE = 'lock_not_available';
        END IF;
    END IF;
    t := dibs.new_turn(now, stamp);
    t.deferred := own_inbox IS NULL;
    IF calm > 0 THEN
        easy := dibs.apply_easy(batch, t.now, t.stamp);
    END IF;
    rest := dibs.apply_rest(batch, easy.done, t, own_inbox);
    RETURN dibs.letter(busy || easy.replies || rest.replies, own_inbox, rest.pushes);
END $$;

-- All but what is done already.
CREATE FUNCTION dibs.apply_rest(
    batch dibs.command[], done integer[], t dibs.turn, own_inbox text
) RETURNS dibs.outcome LANGUAGE plpgsql AS $$
DECLARE
    c dibs.command;
    was dibs.keys;
    result dibs.outcome := ROW('{}', '{}');
BEGIN
    IF cardinality(done) = cardinality(batch) THEN
        RETURN result;
    END IF;
    FOR c IN SELECT * FROM unnest(batch) AS x WHERE x.n <> ALL (done) ORDER BY x.key, x.n LOOP
        IF was.key IS DISTINCT FROM c.key THEN
            result.pushes := result.pushes || dibs.close_book(t, was, own_inbox);
            was := dibs.book_of(c.key);
            t.book := was;
            t.head := NULL;
            t.wakeups := '{}';
        END IF;
        t := dibs.apply_one(t, c);
        result.replies := result.replies || dibs.answer(c.n, t.reply);
    END LOOP;
    result.pushes := result.pushes || dibs.close_book(t, was, own_inbox);
    RETURN result;
END $$;

-- Write what has become of a key, and tell whoever should know.
CREATE FUNCTION dibs.close_book(t dibs.turn, was dibs.keys, own_inbox text)
RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF was.key IS NULL THEN
        RETURN '{}';
    END IF;
    PERFORM dibs.flush(t.book, was, t.now);
    RETURN dibs.post(t, own_inbox);
END $$;

CREATE FUNCTION dibs.busy() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT dibs.failed('busy',
        'a transaction that has not ended keeps this key locked: try again when it has')
$$;

-- The key's own row. It is locked by now.
CREATE FUNCTION dibs.book_of(wanted bytea) RETURNS dibs.keys LANGUAGE plpgsql AS $$
DECLARE
    book dibs.keys;
BEGIN
    SELECT * INTO STRICT book FROM dibs.keys AS k WHERE k.key = wanted;
    PERFORM dibs.must_add_up(book);
    RETURN book;
END $$;

-- What a hand or a bug has made of it is not believed.
CREATE FUNCTION dibs.must_add_up(book dibs.keys) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF book.holds = 0 AND book.used <> coalesce(book.units, 0) THEN
        RAISE EXCEPTION '% units are taken, and its holds have %', book.used, coalesce(book.units, 0)
            USING ERRCODE = 'data_corrupted';
    END IF;
    IF num_nulls(book.id, book.owner, book.token, book.units, book.slots, book.ttl, book.expires,
            book.state, book.seq, book.lock_delay, book.bury, book.since, book.note, book.detail,
            book.inbox, book.address, book.trace) NOT IN (0, 17)
        OR book.state NOT IN ('held', 'unclaimed', 'revoked', 'kept')
    THEN
        RAISE EXCEPTION 'the hold inside its row is no hold' USING ERRCODE = 'data_corrupted';
    END IF;
END $$;

-- ---- answers and pushes -----------------------------------------------------------------------------

CREATE FUNCTION dibs.letter(replies text[], own_inbox text, pushes text[]) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT '{"replies":[' || array_to_string(replies, ',') || '],"inbox":' || to_json(coalesce(own_inbox, ''))
        || ',"wakeups":[' || array_to_string(pushes, ',') || ']}'
$$;

-- Send a turn's wakeups to the inboxes of others; those of `own_inbox` are returned.
CREATE FUNCTION dibs.post(t dibs.turn, own_inbox text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    w dibs.wakeup;
    push text;
    own text[] := '{}';
BEGIN
    FOREACH w IN ARRAY t.wakeups LOOP
        push := dibs.push((t.book).key, w);
        IF w.inbox = own_inbox THEN
            own := own || push;
        ELSIF octet_length(w.inbox) < 64 THEN  -- the length of a channel's name
            IF octet_length(push) >= 8000 THEN  -- whoever gets less must ask
                w.detail := left(w.detail, 200);
                w.token := 0;
                w.slots := '{}';
                w.proof := '';
                push := dibs.push((t.book).key, w);
            END IF;
            IF octet_length(push) < 8000 THEN
                PERFORM pg_notify(w.inbox, push);
            END IF;
        END IF;
    END LOOP;
    RETURN own;
END $$;

CREATE FUNCTION dibs.push(key bytea, w dibs.wakeup) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_array(encode(key, 'hex'), w.lease, w.event, w.token, w.slots, w.granted_at,
        w.wait, w.detail, w.proof)::text
$$;
