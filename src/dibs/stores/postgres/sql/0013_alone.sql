-- A command that comes alone, as those of a program that does one thing at a time do: no batch to read, to
-- sort and to lock.
--
-- Its row is locked where that can be had soon. Where it can't, or there is no row yet, the command goes
-- as a batch of one. An error undoes all of it: whoever sent the command sends it as a batch then,
-- which knows what to answer. A session must have been greeted before (`greeting.py`): nothing here sets how
-- it plans, or where it looks for functions.

-- Answers the token alone where the grant is the plain one: of the lowest slots, for all of the ttl.
CREATE FUNCTION dibs.acquire_alone(
    format integer, its_key bytea, its_id text, its_owner text, its_ttl double precision,
    its_units bigint, its_capacity bigint, its_queue boolean, its_patience double precision,
    its_priority bigint, its_note text, its_floor bigint,
    its_lock_delay double precision, its_inbox text, its_address text, its_trace text,
    own_inbox text, told_now double precision, told_stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN dibs.apply_alone(format, ROW(1, true, 'acquire', its_key, its_id, its_owner, its_ttl,
        its_units, its_capacity, its_queue, its_patience, its_priority, its_note, its_floor,
        its_lock_delay, its_inbox, its_address, its_trace, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL)::dibs.command,
        own_inbox, told_now, told_stamp);
END $$;

-- Answers an empty text where it has released the only hold, and there was nobody to be told.
CREATE FUNCTION dibs.release_alone(
    format integer, its_key bytea, its_id text, its_keep double precision, its_bury double precision,
    own_inbox text, told_now double precision, told_stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN dibs.apply_alone(format, ROW(1, true, 'release', its_key, its_id, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, its_keep, its_bury, NULL, NULL, NULL,
        NULL, NULL)::dibs.command, own_inbox, told_now, told_stamp);
END $$;

CREATE FUNCTION dibs.apply_alone(
    format integer, c dibs.command, own_inbox text, told_now double precision, told_stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    was dibs.keys;
    t dibs.turn;
    answer text;
BEGIN
    PERFORM dibs.must_be(format);
    SELECT * INTO was FROM dibs.keys AS k WHERE k.key = c.key FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        was := dibs.lock_soon(c.key, make => c.kind = 'acquire');
    END IF;
    IF was.key IS NULL THEN  -- it is locked for longer, or there is none
        RETURN dibs.apply(format, json_build_array(dibs.said(c)), own_inbox, told_now,
            told_stamp, tried => EXISTS (SELECT FROM dibs.keys AS k WHERE k.key = c.key));
    END IF;
    t := dibs.new_turn(told_now, told_stamp);
    IF was.waiting = 0 AND was.holds = 0 AND was.tombs = 0 THEN
        IF c.kind = 'acquire' AND was.id IS NULL AND was.used = 0 AND c.units <= c.capacity
            AND dibs.flaw(c) IS NULL
        THEN
            RETURN dibs.grant_alone(c, was, t.now, t.stamp);
        ELSIF c.kind = 'release' AND was.id = c.id AND was.due > t.now
            AND was.state IN ('held', 'unclaimed', 'revoked') AND c.keep = 0 AND c.bury = 0
        THEN
            RETURN dibs.end_alone(c, t.now);
        END IF;
    ELSIF was.waiting > 0 AND c.kind = 'release' AND was.id = c.id AND was.due > t.now
        AND was.state IN ('held', 'unclaimed', 'revoked') AND was.holds = 0 AND was.tombs = 0
        AND c.keep = 0 AND c.bury = 0
    THEN
        answer := dibs.hand_over(was, t, own_inbox);
        IF answer IS NOT NULL THEN
            RETURN answer;
        END IF;
    END IF;
    PERFORM dibs.must_add_up(was);
    t.book := was;
    t := dibs.apply_one(t, c);
    RETURN dibs.letter(ARRAY[dibs.answer(1, t.reply)], own_inbox,
        dibs.close_book(t, was, own_inbox));
END $$;

-- Another command has it locked most likely, and for some milliseconds; or it is to be made.
CREATE FUNCTION dibs.lock_soon(wanted bytea, make boolean) RETURNS dibs.keys LANGUAGE plpgsql
SET lock_timeout = '50ms' AS $$
DECLARE
    was dibs.keys;
    began timestamptz := clock_timestamp();
BEGIN
    IF make THEN
        PERFORM dibs.make_missing(ARRAY[wanted]);
    END IF;
    SELECT * INTO was FROM dibs.keys AS k WHERE k.key = wanted FOR UPDATE;
    RETURN was;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN NULL;
    WHEN query_canceled THEN  -- also what a lock_timeout is called that fires as the lock comes
        IF clock_timestamp() < began + interval '50 ms' THEN
            RAISE;
        END IF;
        RETURN NULL;
END $$;

CREATE FUNCTION dibs.grant_alone(
    c dibs.command, was dibs.keys, now double precision, now_stamp bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    new_token bigint := dibs.next_token(was.last, now_stamp, c.floor);
BEGIN
    UPDATE dibs.keys AS k
    SET capacity = c.capacity, used = c.units, due = now + c.ttl, touched = now,
        last = new_token, id = c.id, owner = c.owner, token = new_token,
        units = c.units,
        slots = CASE WHEN c.capacity > dibs.max_slots() THEN '{}'
            WHEN c.units = 1 THEN '{0}'
            ELSE ARRAY(SELECT generate_series(0, c.units::integer - 1)) END,
        ttl = c.ttl, expires = now + c.ttl, state = 'held', seq = 0, lock_delay = c.lock_delay,
        bury = 0, since = now_stamp, note = c.note, detail = '', inbox = c.inbox,
        address = c.address, trace = c.trace
    WHERE k.key = c.key;
    RETURN new_token;
END $$;

CREATE FUNCTION dibs.end_alone(c dibs.command, now double precision) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dibs.keys AS k
    SET used = 0, due = 'Infinity', touched = now, id = NULL, owner = NULL, token = NULL,
        units = NULL, slots = NULL, ttl = NULL, expires = NULL, state = NULL, seq = NULL,
        lock_delay = NULL, bury = NULL, since = NULL, note = NULL, detail = NULL, inbox = NULL,
        address = NULL, trace = NULL
    WHERE k.key = c.key;
    RETURN '';
END $$;

-- The only hold is released, and the head of the queue has it: what a crowded lock does all day. Null where
-- it is not as plain as that: where somebody is silent, or does not fit, or fits beside the head.
CREATE FUNCTION dibs.hand_over(was dibs.keys, t dibs.turn, own_inbox text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    place dibs.places;
    head dibs.places;
    next dibs.places;
    claim_by double precision;
    new_token bigint;
    new_slots integer[];
BEGIN
    FOR place IN SELECT * FROM dibs.places AS p WHERE p.key = was.key
        ORDER BY p.urgency, p.arrival LIMIT 2
    LOOP
        head := coalesce(head, place);
        next := place;
    END LOOP;
    IF was.used + head.units <= was.capacity OR head.units > was.capacity
        OR dibs.silent(head, t.now, was.doubt) OR was.waiting > 1 AND (next.units > was.capacity
            OR head.units + next.units <= was.capacity OR dibs.silent(next, t.now, was.doubt))
    THEN
        RETURN NULL;
    END IF;
    new_token := dibs.next_token(was.last, t.stamp, head.floor);
    new_slots := CASE WHEN was.capacity > dibs.max_slots() THEN '{}' WHEN head.units = 1 THEN '{0}'
        ELSE ARRAY(SELECT generate_series(0, head.units::integer - 1)) END;
    claim_by := dibs.claim_window(head.grant_ttl);
    DELETE FROM dibs.places AS p WHERE p.key = was.key AND p.urgency = head.urgency
        AND p.arrival = head.arrival AND p.id = head.id;
    UPDATE dibs.keys AS k
    SET last = new_token, used = head.units, waiting = was.waiting - 1,
        due = CASE WHEN was.waiting > 1 THEN least(was.due, t.now + claim_by)
            ELSE t.now + claim_by END,
        touched = t.now, id = head.id, owner = head.owner, token = new_token, units = head.units,
        slots = new_slots, ttl = claim_by, expires = t.now + claim_by, state = 'unclaimed', seq = 0,
        lock_delay = head.lock_delay, bury = 0, since = t.stamp, note = head.note, detail = '',
        inbox = head.inbox, address = head.address, trace = head.trace
    WHERE k.key = was.key;
    t.book := was;
    IF head.inbox <> '' THEN
        t.wakeups := ARRAY[ROW(dibs.fingerprint(head.id), head.inbox, 'granted', new_token,
            new_slots, t.now, claim_by, '',
            dibs.proof(was.key, head.id, new_token, new_slots, t.now, claim_by))::dibs.wakeup];
    END IF;
    IF was.waiting > 1 AND next.inbox <> '' THEN
        t.wakeups := t.wakeups || ROW(dibs.fingerprint(next.id), next.inbox, 'head', 0, '{}',
            t.now, 0, '', '')::dibs.wakeup;
    END IF;
    RETURN dibs.letter(ARRAY[dibs.answer(1, '["Released"]')], own_inbox,
        dibs.post(t, own_inbox));
END $$;

-- A command as a batch has it.
CREATE FUNCTION dibs.said(c dibs.command) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('kind', c.kind, 'key', encode(c.key, 'hex'), 'id', c.id,
        'owner', c.owner, 'ttl', c.ttl, 'units', c.units, 'capacity', c.capacity, 'queue', c.queue,
        'patience', c.patience, 'priority', c.priority, 'note', c.note,
        'floor', c.floor, 'lock_delay', c.lock_delay, 'inbox', c.inbox, 'address', c.address, 'trace', c.trace, 'keep', c.keep,
        'bury', c.bury)
$$;
