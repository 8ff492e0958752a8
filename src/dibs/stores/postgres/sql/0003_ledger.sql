-- The ledger: `core/ledger.py` and `core/transition.py`, rule by rule, over the rows of locked keys.
--
-- A reply is a JSON array: the name of its class, then that class's fields (`core/codec.py`).

CREATE TYPE dibs.command AS (
    n integer,          -- its number in the batch, from 1
    kind text,          -- the name of its class; or flawed
    key bytea, id text, ttl double precision, units bigint, inbox text,
    owner text, capacity bigint, queue boolean, waiter_ttl double precision, priority bigint, note text,
    floor bigint, lock_delay double precision, trace text, address text,        -- Acquire
    retain double precision, tombstone double precision,                        -- Release
    seq bigint,                                                                 -- Resize
    lease text, reason text, now boolean,                                       -- Revoke
    flaw text           -- what its sender knows to be wrong with it
);

-- What an Acquire asks for, as a waiter, which may become a hold at once.
CREATE FUNCTION dibs.waiter(c dibs.command, now double precision, stamp bigint) RETURNS dibs.entries
LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(c.key, c.id, 'waiter', '', c.waiter_ttl, now + c.waiter_ttl, '',
        c.owner, c.units, c.lock_delay, stamp, c.note, c.inbox, c.address, c.trace,
        NULL, NULL, NULL, NULL,
        -c.priority, NULL, c.ttl, c.floor, NULL, NULL)::dibs.entries
$$;

-- ---- replies and notifications ------------------------------------------------------------------------

CREATE FUNCTION dibs.granted(hold dibs.entries) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT '["granted",' || hold.token || ',[' || array_to_string(hold.slots, ',') || '],' || hold.ttl || ']'
$$;

-- Notify the client that has an entry. What goes to `own_inbox` is returned instead.
CREATE FUNCTION dibs.notify(
    wanted bytea, e dibs.entries, event text, now double precision, own_inbox text, detail text DEFAULT ''
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    said text := '["' || encode(wanted, 'hex') || '","notification","' || dibs.fingerprint(e.id) || '","' || event
        || '",' || CASE WHEN event = 'granted'
        THEN e.token || ',[' || array_to_string(e.slots, ',') || '],' || now || ',' || e.ttl || ',"","'
            || dibs.proof(wanted, e.id, e.token, e.slots, now, e.ttl) || '"]'
        ELSE '0,[],' || now || ',0,' || to_json(left(detail, 200)) || ',""]' END;
BEGIN
    IF e.inbox = own_inbox AND own_inbox <> '' THEN
        RETURN ARRAY[said];
    ELSIF octet_length(e.inbox) BETWEEN 1 AND 63 AND octet_length(said) < 8000 THEN  -- else it asks by itself
        PERFORM pg_notify(e.inbox, said);
    END IF;
    RETURN '{}';
END $$;

-- ---- the rules ----------------------------------------------------------------------------------------

-- The fast path, for a key that has nothing but the hold inside: its row after an Acquire that is granted at
-- once, or after a plain Release. Null for everything else.
CREATE FUNCTION dibs.fast_path(book dibs.keys, c dibs.command, now double precision, stamp bigint)
RETURNS dibs.keys LANGUAGE plpgsql AS $$
BEGIN
    IF book.waiting > 0 OR book.holds > 0 OR book.tombstones > 0 THEN
        RETURN NULL;
    END IF;
    book.taken := NULL;
    IF c.kind = 'acquire' AND (book.hold).id IS NULL AND book.used = 0
        AND c.units <= c.capacity AND book.last < 9007199254740992
    THEN
        book.capacity := c.capacity;
        book.last := dibs.next_token(book.last, stamp, c.floor);
        book.hold := dibs.hold_of(dibs.waiter(c, now, stamp), book, 'held', c.ttl, now, stamp);
        book.used := c.units;
        book.due := now + c.ttl;
    ELSIF c.kind = 'release' AND (book.hold).id = c.id AND (book.hold).state <> 'retained'
        AND book.due > now AND c.retain = 0 AND c.tombstone = 0
    THEN
        book.hold := NULL;
        book.used := 0;
        book.due := 'Infinity';
    ELSE
        RETURN NULL;
    END IF;
    RETURN book;
END $$;

CREATE TYPE dibs.outcome AS (replies text[], notifications text[]);

-- Apply commands, ordered by key, to the locked rows of their keys, in the same order. A key that has none is
-- busy. Writes each reply under its command's number; `notifications` are the notifications for `own_inbox`. That is
-- null in a user's own transaction: nobody is granted by notification before it ends.
--
-- A command goes through stages: `rule`, then maybe `room` (a new Acquire) or `queue` (a waiter), and `end`.
-- Before each of them, what time has changed is settled.
CREATE FUNCTION dibs.ledger(
    locked dibs.keys[], batch dibs.command[], own_inbox text, now double precision, stamp bigint
) RETURNS dibs.outcome LANGUAGE plpgsql AS $$
DECLARE
    replies text[] := array_fill(NULL::text, ARRAY[cardinality(batch)]);
    notifications text[] := '{}';
    deferred boolean := own_inbox IS NULL;
    at integer := 0;
    book dibs.keys;
    was dibs.keys;
    fast dibs.keys;
    head dibs.entries;          -- the first in the queue; null where it is not known
    first text;                 -- its id before this command
    batch_steps integer := 256; -- how many entries the batch may still end, and waiters grant or refuse,
    steps integer;              -- and this command
    allowed integer;
    too_large CONSTANT text := '["refused","too_large",[],0]';
    c dibs.command;
    stage text;
    reply text;
    own dibs.entries;           -- what the command's id has,
    wish dibs.entries;          -- what it asks for,
    new dibs.entries;           -- and what it will have
    writes boolean;
    e dibs.entries;
    over dibs.entries[];
    late double precision;
    remember double precision;  -- seconds for which an id is remembered
    free_in double precision;   -- seconds until what is granted or retained now is free again; or null
    waiting integer;
    ahead bigint;
    ends_in double precision;
    is_next boolean;
    wait double precision;
    again double precision;
BEGIN
    FOREACH c IN ARRAY batch LOOP
        IF book.key IS DISTINCT FROM c.key THEN
            IF (locked[at + 1]).key IS DISTINCT FROM c.key THEN
                replies[c.n] := json_build_array('failed', 'busy',
                    'a transaction that has not ended keeps this key locked: try again when it has');
                CONTINUE;
            END IF;
            PERFORM dibs.flush(book, was, now);
            at := at + 1;
            was := locked[at];
            PERFORM dibs.check_book(was);
            book := was;
            head := NULL;
        END IF;
        fast := dibs.fast_path(book, c, now, stamp);
        IF fast.key IS NOT NULL THEN
            book := fast;
            replies[c.n] := coalesce(dibs.granted(book.hold), '["released"]');
            CONTINUE;
        ELSIF c.kind = 'flawed' THEN
            replies[c.n] := json_build_array('failed', 'invalid', c.flaw);
            CONTINUE;
        ELSIF deferred AND c.kind = 'acquire' AND book.waiting > 0
            AND current_setting('transaction_isolation') <> 'read committed'
        THEN
            replies[c.n] := json_build_array('failed', 'busy', 'others wait for this key, and a transaction '
                'at this isolation level can''t see which of them are alive: use READ COMMITTED');
            CONTINUE;
        END IF;
        allowed := greatest(least(batch_steps, 64), 4);
        steps := allowed;
        free_in := NULL;
        IF book.waiting > 0 AND head.id IS NULL THEN
            head := dibs.head_of(book.key);
        END IF;
        first := head.id;
        stage := 'rule';
        LOOP
            -- expire entries, as far as `steps` go; the caller's own expires in any case
            IF book.due <= now THEN
                over := ARRAY(SELECT x FROM dibs.by_expiry(book, now, steps) AS x
                    ORDER BY x.expires, x.id COLLATE "C" LIMIT steps);
                steps := steps - cardinality(over);
                IF steps = 0 AND c.id IS NOT NULL THEN
                    own := dibs.get(book, c.id);
                    IF own.expires <= now AND own <> ALL (over) THEN
                        over := over || own;
                    END IF;
                END IF;
                FOREACH e IN ARRAY over LOOP
                    late := now - e.expires;  -- what follows counts from its end, however late we look
                    new := NULL;
                    IF e.what = 'hold' THEN
                        remember := CASE WHEN e.state IN ('unclaimed', 'revoked')
                            THEN dibs.tombstone_ttl() ELSE 0 END;
                        IF e.state = 'unclaimed' THEN
                            book.doubt := greatest(book.doubt, e.token);
                        END IF;
                        IF e.state <> 'retained' AND e.lock_delay > late THEN
                            free_in := least(free_in, e.lock_delay - late);
                            new := dibs.retained(e, now, e.lock_delay - late, remember);
                        ELSIF remember > late THEN
                            new := dibs.tombstone(e.id, now, remember - late, e.state, e.detail);
                        ELSIF remember = 0 AND e.tombstone > late THEN
                            new := dibs.tombstone(e.id, now, e.tombstone - late, 'released', e.detail);
                        END IF;
                    ELSIF e.what = 'waiter' THEN
                        head := NULL;
                    END IF;
                    book := dibs.put(book, e, new);
                END LOOP;
                book.due := coalesce(
                    (SELECT min(x.expires) FROM dibs.by_expiry(book, 'Infinity', 1) AS x), 'Infinity');
            END IF;

            -- grant the first waiter that is not passed over, while it fits
            LOOP
                IF book.waiting > 0 AND head.id IS NULL THEN
                    head := dibs.head_of(book.key);
                END IF;
                EXIT WHEN book.waiting = 0 OR steps = 0 OR deferred;
                EXIT WHEN head.units <= book.capacity AND book.used + head.units > book.capacity
                    AND (book.used >= book.capacity OR NOT dibs.is_passed_over(head, now, book.doubt));
                is_next := false;
                FOR e IN SELECT * FROM dibs.entries AS x WHERE x.key = book.key AND x.what = 'waiter'
                    ORDER BY x.urgency, x.arrival LIMIT dibs.examined_positions()
                LOOP
                    is_next := e.units > book.capacity;
                    EXIT WHEN is_next OR book.used >= book.capacity
                        OR dibs.holding(book) >= dibs.max_holders();
                    CONTINUE WHEN dibs.is_passed_over(e, now, book.doubt);
                    is_next := book.used + e.units <= book.capacity;
                    EXIT;
                END LOOP;
                EXIT WHEN NOT is_next;
                IF e.units > book.capacity THEN  -- the capacity has shrunk
                    new := dibs.tombstone(e.id, now, dibs.tombstone_ttl(), 'too_large');
                ELSE  -- it stands for the claim timeout, until its owner claims it
                    book.last := dibs.next_token(book.last, stamp, e.floor);
                    new := dibs.hold_of(e, book, 'unclaimed', dibs.claim_timeout(e.grant_ttl), now, stamp);
                    free_in := least(free_in, new.ttl);
                END IF;
                book := dibs.put(book, e, new);
                IF e.id IS DISTINCT FROM c.id THEN
                    notifications := notifications || CASE new.what
                        WHEN 'hold' THEN dibs.notify(book.key, new, 'granted', now, own_inbox)
                        ELSE dibs.notify(book.key, e, 'refused', now, own_inbox) END;
                END IF;
                head := NULL;
                steps := steps - 1;
            END LOOP;
            EXIT WHEN stage = 'end';

            -- the command itself
            writes := false;
            IF stage = 'rule' THEN
                stage := 'end';
                own := NULL;
                IF c.id IS NOT NULL THEN
                    own := dibs.get(book, c.id);
                END IF;
                new := own;
                IF own.what <> 'tombstone' AND (c.kind = 'acquire' OR c.kind = 'renew' AND c.inbox <> '') THEN
                    new.inbox := c.inbox;  -- its owner may have reconnected
                END IF;
                CASE
                WHEN c.kind IN ('acquire', 'renew') AND own.what = 'waiter' THEN
                    writes := true;
                    IF own.units > book.capacity THEN
                        new := dibs.tombstone(c.id, now, dibs.tombstone_ttl(), 'too_large');
                        reply := CASE c.kind WHEN 'acquire' THEN too_large
                            ELSE '["lost","expired","too large"]' END;
                    ELSE
                        stage := 'queue';
                        ahead := dibs.ahead_of(book, own, false);
                        new.expires := now + own.ttl;
                    END IF;

                WHEN c.kind IN ('acquire', 'renew') AND own.what = 'hold'
                    AND own.state IN ('held', 'unclaimed')
                THEN
                    writes := true;
                    new.state := 'held';
                    new.ttl := greatest(c.ttl, least(own.expires - now, own.ttl));
                    new.expires := now + new.ttl;
                    reply := CASE WHEN c.kind = 'renew' AND own.state = 'held'
                        THEN '["renewed",' || new.ttl || ']' ELSE dibs.granted(new) END;

                WHEN c.kind = 'acquire' AND own.id IS NOT NULL THEN
                    reply := CASE own.state WHEN 'too_large' THEN too_large ELSE '["gone"]' END;

                WHEN c.kind = 'acquire' AND c.units > c.capacity THEN
                    reply := too_large;

                WHEN c.kind = 'acquire' THEN
                    stage := 'room';
                    book.capacity := c.capacity;  -- a greater one lets the queue in first

                WHEN c.kind = 'renew' THEN
                    writes := own.what = 'hold' AND new.inbox <> own.inbox;
                    reply := CASE own.state WHEN 'revoked' THEN json_build_array('lost', 'revoked', own.detail)
                        ELSE '["lost","expired",""]'::json END;

                WHEN c.kind = 'release' THEN
                    reply := CASE WHEN own.what IN ('hold', 'waiter') THEN '["released"]'
                        ELSE '["unknown"]' END;
                    IF own.state = 'retained' THEN
                        writes := c.tombstone > own.tombstone;
                        new.tombstone := c.tombstone;  -- a repeat never extends the hold
                    ELSIF own.what = 'hold' AND c.retain > 0 THEN
                        writes := true;
                        new := dibs.retained(own, now, c.retain, c.tombstone);
                    ELSIF own.what = 'tombstone' THEN
                        writes := c.tombstone > 0;  -- its Acquire may have been sent again since
                        new.ttl := greatest(c.tombstone, least(own.expires - now, own.ttl));
                        new.expires := now + new.ttl;
                    ELSIF c.tombstone > 0 THEN
                        writes := true;
                        new := dibs.tombstone(c.id, now, c.tombstone, 'released');
                    ELSE
                        writes := own.id IS NOT NULL;
                        new := NULL;
                    END IF;

                WHEN c.kind = 'resize' AND (own.what = 'hold' AND own.state <> 'retained') IS NOT TRUE THEN
                    reply := '["lost","expired",""]';

                WHEN c.kind = 'resize' AND own.state = 'revoked' THEN
                    reply := json_build_array('lost', 'revoked', own.detail);

                WHEN c.kind = 'resize' THEN
                    writes := true;
                    new.state := 'held';  -- a command from its owner claims it
                    new.ttl := greatest(0, least(own.expires - now, own.ttl));
                    new.expires := now + new.ttl;
                    IF c.seq > own.seq THEN
                        new.seq := c.seq;  -- also of what is refused: its late copy must not succeed
                        IF c.units <= own.units THEN
                            new.slots := own.slots[1:c.units::integer];
                            new.units := c.units;
                        ELSIF book.used - own.units + c.units <= book.capacity THEN
                            -- Growing ignores the queue: a holder could wait for waiters that wait for it.
                            book.last := dibs.next_token(book.last, stamp, 0);
                            new.token := book.last;
                            new.slots := dibs.free_slots(book, c.units, own.slots);
                            new.units := c.units;
                        END IF;
                    END IF;
                    IF c.seq = new.seq AND c.units > book.capacity AND c.units <> new.units THEN
                        reply := too_large;
                    ELSIF c.seq = new.seq AND c.units <> new.units THEN
                        reply := dibs.refused(book, 'held', own.id, (SELECT min(h.expires) - now
                            FROM dibs.first_to_end(book, 2) AS h WHERE h.id <> own.id), now, stamp);
                    ELSE
                        reply := dibs.granted(new);
                    END IF;

                WHEN c.kind = 'inspect' THEN
                    reply := dibs.status(book, now, stamp);

                WHEN c.kind = 'revoke' THEN
                    over := ARRAY(SELECT h FROM dibs.first_to_end(book, dibs.max_holders()) AS h
                        WHERE h.state <> 'retained' AND (c.lease IS NULL OR c.lease = dibs.fingerprint(h.id)));
                    ends_in := 0;
                    FOREACH e IN ARRAY over LOOP
                        notifications := notifications
                            || dibs.notify(book.key, e, 'revoked', now, own_inbox, c.reason);
                        IF c.now THEN
                            new := dibs.tombstone(e.id, now, dibs.tombstone_ttl(), 'revoked', c.reason);
                        ELSE
                            new := e;
                            new.state := 'revoked';
                            new.detail := c.reason;
                            ends_in := greatest(ends_in, e.expires - now);
                        END IF;
                        book := dibs.put(book, e, new);
                    END LOOP;
                    reply := json_build_array('revoked', cardinality(over), ends_in);
                END CASE;

            ELSIF stage = 'room' THEN
                writes := true;
                wish := dibs.waiter(c, now, stamp);
                IF dibs.fits(book, c.units, now, CASE WHEN c.queue THEN book.doubt ELSE 0 END) THEN
                    stage := 'granted';  -- a try passes only waiters that missed a heartbeat
                ELSIF c.queue THEN
                    stage := 'queue';
                    book.arrivals := book.arrivals + 1;
                    wish.arrival := book.arrivals;
                    new := wish;
                    ahead := dibs.ahead_of(book, new, true);
                ELSE
                    stage := 'end';
                    writes := false;
                    again := dibs.first_release(book) - now;
                    reply := dibs.refused(book, CASE WHEN (SELECT bool_and(h.state = 'retained')
                            FROM dibs.first_to_end(book, 8) AS h) THEN 'closed' ELSE 'held' END, NULL,
                        CASE WHEN steps = 0 THEN 0 WHEN again < 'Infinity' THEN again ELSE 5 END, now, stamp);
                END IF;

            ELSIF stage = 'queue' THEN
                stage := 'end';
                IF book.waiting <> waiting THEN
                    own := dibs.get(book, c.id);
                END IF;
                IF own.what = 'hold' THEN
                    stage := 'rule';  -- to claim it
                ELSIF NOT deferred AND dibs.fits(book, own.units, now, book.doubt) THEN
                    stage := 'granted';  -- it is behind those that are examined above
                    writes := true;
                    wish := own;
                ELSE
                    IF book.waiting <> waiting THEN
                        ahead := dibs.ahead_of(book, own, false);
                    END IF;
                    -- When its owner should send its next heartbeat.
                    wait := dibs.claim_timeout(own.grant_ttl);
                    again := greatest(dibs.first_release(book) - now, 0);
                    reply := json_build_array('queued', ahead, CASE
                        WHEN steps = 0 THEN 0  -- there is more to do at once
                        WHEN own.silence = wait AND ahead > 0 THEN wait / 3
                        WHEN own.silence = wait THEN least(wait / 3, again)
                        ELSE least(own.ttl / 3, free_in, wait + least(wait, again)) END, now);
                END IF;
            END IF;

            IF stage = 'queue' THEN  -- a heartbeat
                new.silence := dibs.claim_timeout(new.grant_ttl);
                IF ahead >= dibs.heartbeat_positions() AND ahead - dibs.count_passed_over(book.key,
                    least(ahead, dibs.examined_positions()), now, book.doubt) >= dibs.heartbeat_positions()
                THEN
                    new.silence := 3 * new.silence;
                END IF;
                new.seen := book.last;
            ELSIF stage = 'granted' THEN
                stage := 'end';
                book.last := dibs.next_token(book.last, stamp, wish.floor);
                new := dibs.hold_of(wish, book, 'held', CASE WHEN own.what = 'waiter'
                    THEN greatest(c.ttl, dibs.claim_timeout(own.grant_ttl)) ELSE c.ttl END, now, stamp);
                reply := dibs.granted(new);
            END IF;
            IF writes THEN
                IF own.what = 'waiter' OR new.what = 'waiter' THEN
                    head := NULL;
                END IF;
                book := dibs.put(book, own, new);
                own := new;
            END IF;
            waiting := book.waiting;
        END LOOP;
        replies[c.n] := reply;
        batch_steps := batch_steps - (allowed - steps);
        IF book.waiting > 0 AND head.id IS DISTINCT FROM first AND head.id IS DISTINCT FROM c.id THEN
            notifications := notifications || dibs.notify(book.key, head, 'head', now, own_inbox);
        END IF;
    END LOOP;
    PERFORM dibs.flush(book, was, now);
    RETURN ROW(replies, notifications);
END $$;
