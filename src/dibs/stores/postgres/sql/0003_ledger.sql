-- The ledger: `core/ledger.py` and `core/transition.py`, rule by rule, over the rows of locked keys.
--
-- A reply is a JSON array: the name of its class, then that class's fields (`core/codec.py`).

CREATE TYPE dibs.command AS (
    n integer,          -- its number in the batch, from 1
    kind text, key bytea, id text,
    owner text, ttl double precision, units bigint, capacity bigint, queue boolean,
    patience double precision, priority bigint, note text, floor bigint,
    lock_delay double precision, inbox text,            -- Acquire; Renew has ttl and inbox
    trace text, address text,                           -- Acquire
    keep double precision, bury double precision,       -- Release
    seq bigint,                                         -- Resize, with units
    lease text, reason text, at_once boolean,           -- Revoke
    flaw text           -- what its sender knows to be wrong with it
);

-- A command, from a JSON array: the key in hexadecimal, the name of its class, then that class's fields.
CREATE FUNCTION dibs.command_of(n bigint, said jsonb) RETURNS dibs.command LANGUAGE plpgsql AS $$
DECLARE
    c dibs.command;
BEGIN
    c.n := n;
    c.key := decode(said ->> 0, 'hex');
    c.kind := said ->> 1;
    CASE c.kind
    WHEN 'acquire' THEN
        c.id := said ->> 2;
        c.owner := said ->> 3;
        c.ttl := said ->> 4;
        c.units := said ->> 5;
        c.capacity := said ->> 6;
        c.queue := said ->> 7;
        c.patience := said ->> 8;
        c.priority := said ->> 9;
        c.note := said ->> 10;
        c.floor := said ->> 11;
        c.lock_delay := said ->> 12;
        c.inbox := said ->> 13;
        c.trace := said ->> 14;
        c.address := said ->> 15;
    WHEN 'renew' THEN
        c.id := said ->> 2;
        c.ttl := said ->> 3;
        c.inbox := said ->> 4;
    WHEN 'release' THEN
        c.id := said ->> 2;
        c.keep := said ->> 3;
        c.bury := said ->> 4;
    WHEN 'resize' THEN
        c.id := said ->> 2;
        c.units := said ->> 3;
        c.seq := said ->> 4;
    WHEN 'revoke' THEN
        c.lease := said ->> 2;
        c.reason := said ->> 3;
        c.at_once := said ->> 4;
    WHEN 'inspect' THEN
        NULL;
    ELSE
        c.flaw := coalesce(said ->> 2, 'something is missing');
    END CASE;
    RETURN c;
EXCEPTION WHEN data_exception THEN
    c.flaw := 'no row can hold this: ' || SQLERRM;
    RETURN c;
END $$;

-- What is wrong with a command that no client of ours would send. (NaN is greater than Infinity here, and
-- what is compared with null is neither true nor false.)
CREATE FUNCTION dibs.flaw(c dibs.command) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE
    WHEN c.flaw IS NOT NULL THEN c.flaw
    WHEN num_nulls(c.kind, c.key) > 0 OR CASE c.kind
        WHEN 'acquire' THEN num_nulls(c.id, c.owner, c.ttl, c.units, c.capacity, c.queue, c.patience,
            c.priority, c.note, c.floor, c.lock_delay, c.inbox, c.address, c.trace)
        WHEN 'renew' THEN num_nulls(c.id, c.ttl, c.inbox)
        WHEN 'release' THEN num_nulls(c.id, c.keep, c.bury)
        WHEN 'resize' THEN num_nulls(c.id, c.units, c.seq)
        WHEN 'revoke' THEN num_nulls(c.reason, c.at_once)
        ELSE 0 END > 0 THEN 'something is missing'
    WHEN c.kind = 'acquire' THEN CASE
        WHEN NOT (0 < c.ttl AND c.ttl < 'Infinity' AND 0 < c.patience AND c.patience < 'Infinity')
            THEN 'ttl and waiter_ttl must be positive'
        WHEN c.units < 1 OR c.floor < 0 OR c.floor >= 9007199254740992
            THEN 'units must be at least 1, floor at least 0 and less than 2^53'
        WHEN NOT (0 <= c.lock_delay AND c.lock_delay < 'Infinity')
            THEN 'lock_delay must be finite and at least 0'
        WHEN c.units > dibs.many() OR c.capacity > dibs.many()
            THEN 'units and capacity must be at most ' || dibs.many() END
    WHEN c.kind = 'renew' THEN
        CASE WHEN NOT (0 < c.ttl AND c.ttl < 'Infinity') THEN 'ttl must be positive' END
    WHEN c.kind = 'resize' THEN
        CASE WHEN c.units < 1 THEN 'units must be at least 1'
        WHEN c.units > dibs.many() THEN 'units and capacity must be at most ' || dibs.many() END
    WHEN c.kind = 'release' AND NOT (0 <= c.keep AND c.keep < 'Infinity'
            AND 0 <= c.bury AND c.bury < 'Infinity')
        THEN 'retain and tombstone must be finite and at least 0'
    END
$$;

-- What an Acquire asks for, as an entry: a place, unless it becomes a hold at once.
CREATE FUNCTION dibs.place_of(c dibs.command, now double precision, stamp bigint) RETURNS dibs.entries
LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(c.key, c.id, 'place', '', c.patience, now + c.patience, '',
        c.owner, c.units, c.lock_delay, stamp, c.note, c.inbox, c.address, c.trace,
        NULL, NULL, NULL, NULL,
        -c.priority, NULL, c.ttl, c.floor, NULL, NULL)::dibs.entries
$$;

-- ---- replies and notifications ------------------------------------------------------------------------

CREATE FUNCTION dibs.granted(hold dibs.entries) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT '["granted",' || hold.token || ',[' || array_to_string(hold.slots, ',') || '],' || hold.ttl || ']'
$$;

CREATE FUNCTION dibs.too_large() RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT '["refused","too_large",[],0]' $$;

CREATE FUNCTION dibs.lost(reason text, detail text) RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT json_build_array('lost', reason, detail)::text $$;

CREATE FUNCTION dibs.failed(reason text, detail text) RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT json_build_array('failed', reason, detail)::text $$;

-- Notify the client that has an entry, if it can be. What goes to `own_inbox` is returned instead.
CREATE FUNCTION dibs.notify(
    wanted bytea, e dibs.entries, event text, now double precision, own_inbox text, detail text DEFAULT ''
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    beginning text;
    said text;
BEGIN
    IF octet_length(e.inbox) NOT BETWEEN 1 AND 63 THEN  -- the length of a channel's name
        RETURN '{}';
    END IF;
    beginning := '["' || encode(wanted, 'hex') || '","notification",'
        || to_json(dibs.fingerprint(e.id)) || ',"' || event || '",';
    said := beginning || CASE WHEN event = 'granted'
        THEN e.token || ',[' || array_to_string(e.slots, ',') || '],' || now || ',' || e.ttl || ',"","'
            || dibs.proof(wanted, e.id, e.token, e.slots, now, e.ttl) || '"]'
        ELSE '0,[],' || now || ',0,' || to_json(detail) || ',""]' END;
    IF e.inbox = own_inbox THEN
        RETURN ARRAY[said];
    ELSIF octet_length(said) >= 8000 THEN  -- its client gets less, and asks
        said := beginning || '0,[],' || now || ',' || CASE WHEN event = 'granted' THEN e.ttl ELSE 0 END
            || ',' || to_json(left(detail, 200)) || ',""]';
    END IF;
    IF octet_length(said) < 8000 THEN
        PERFORM pg_notify(e.inbox, said);
    END IF;
    RETURN '{}';
END $$;

-- ---- the rules ----------------------------------------------------------------------------------------

CREATE TYPE dibs.outcome AS (replies text[], pushes text[]);

-- Apply commands, ordered by key, to the rows of their keys, which are locked and in the same order. Writes
-- each reply under its command's number; `pushes` are the notifications for `own_inbox`. That is null in a
-- transaction of a user's own, where nobody is granted by notification before it ends.
--
-- A command goes through stages: `rule`, then maybe `room` (a new Acquire) or `line` (a place), and `end`.
-- Before each of them, what time has changed is settled.
CREATE FUNCTION dibs.ledger(
    locked dibs.keys[], batch dibs.command[], own_inbox text, now double precision, stamp bigint,
    replies text[]
) RETURNS dibs.outcome LANGUAGE plpgsql AS $$
DECLARE
    pushes text[] := '{}';
    deferred boolean := own_inbox IS NULL;
    at integer := 0;
    book dibs.keys;
    was dibs.keys;
    head dibs.entries;          -- the first in the queue; null where it is not known
    first text;                 -- its id before this command
    batch_steps integer := 256; -- how many entries the batch may still end, and waiters grant or refuse,
    steps integer;              -- and this command
    allowed integer;
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
    bury double precision;
    free_in double precision;   -- when what is granted or closed now is free again by time; or null
    waiting integer;
    ahead bigint;
    ends_in double precision;
    is_next boolean;
    wait double precision;
    again double precision;
BEGIN
    FOREACH c IN ARRAY batch LOOP
        IF book.key IS DISTINCT FROM c.key THEN
            PERFORM dibs.flush(book, was, now);
            at := at + 1;
            was := locked[at];
            PERFORM dibs.must_add_up(was);
            book := was;
            head := NULL;
        END IF;
        reply := dibs.flaw(c);
        IF reply IS NOT NULL THEN
            replies[c.n] := dibs.failed('invalid', reply);
            CONTINUE;
        ELSIF deferred AND c.kind = 'acquire' AND book.waiting > 0
            AND current_setting('transaction_isolation') <> 'read committed'
        THEN
            replies[c.n] := dibs.failed('busy', 'others wait for this key, and a transaction at this '
                || 'isolation level can''t see which of them are alive: use READ COMMITTED');
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
            -- -- end what time has ended, as far as `steps` go; what the caller has ends in any case

            IF book.due <= now THEN
                over := '{}';
                IF steps > 0 THEN
                    over := ARRAY(SELECT x FROM dibs.by_end(book, now, true, steps + 1) AS x
                        ORDER BY x.expires, x.id COLLATE "C" LIMIT steps + 1);
                    book.due := least((SELECT min(x.expires) FROM dibs.by_end(book, now, false, 1) AS x),
                        (over[steps + 1]).expires, 'Infinity');
                    over := over[1:steps];
                    steps := steps - cardinality(over);
                END IF;
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
                        bury := CASE WHEN e.state IN ('unclaimed', 'revoked') THEN dibs.tombstone_ttl() ELSE 0 END;
                        IF e.state = 'unclaimed' THEN
                            book.doubt := greatest(book.doubt, e.token);
                        END IF;
                        IF e.state <> 'retained' AND e.lock_delay > late THEN
                            free_in := least(free_in, e.lock_delay - late);
                            new := dibs.kept(e, now, e.lock_delay - late, bury);
                        ELSIF bury > late THEN
                            new := dibs.tomb(e.id, now, bury - late, e.state, e.detail);
                        ELSIF bury = 0 AND e.bury > late THEN
                            new := dibs.tomb(e.id, now, e.bury - late, 'buried', e.detail);
                        END IF;
                    ELSIF e.what = 'place' THEN
                        head := NULL;
                    END IF;
                    book := dibs.put(book, e, new);
                END LOOP;
            END IF;

            -- -- grant the first waiter that is not passed over, while it fits

            LOOP
                IF book.waiting > 0 AND head.id IS NULL THEN
                    head := dibs.head_of(book.key);
                END IF;
                EXIT WHEN book.waiting = 0 OR steps = 0 OR deferred;
                EXIT WHEN head.units <= book.capacity AND book.used + head.units > book.capacity
                    AND (book.used >= book.capacity OR NOT dibs.silent(head, now, book.doubt));
                is_next := false;
                FOR e IN SELECT * FROM dibs.entries AS x WHERE x.key = book.key AND x.what = 'place'
                    ORDER BY x.urgency, x.arrival LIMIT dibs.sight()
                LOOP
                    is_next := e.units > book.capacity;
                    EXIT WHEN is_next OR book.used >= book.capacity OR dibs.is_crowded(book);
                    CONTINUE WHEN dibs.silent(e, now, book.doubt);
                    is_next := book.used + e.units <= book.capacity;
                    EXIT;
                END LOOP;
                EXIT WHEN NOT is_next;
                IF e.units > book.capacity THEN  -- the capacity has shrunk
                    new := dibs.tomb(e.id, now, dibs.tombstone_ttl(), 'too_large');
                ELSE  -- it stands until its owner speaks
                    book.last := dibs.next_token(book.last, stamp, e.floor);
                    book.taken := dibs.taken_slots(book);
                    new := dibs.hold_of(e, book, 'unclaimed', dibs.claim_timeout(e.grant_ttl), now, stamp);
                    free_in := least(free_in, new.ttl);
                END IF;
                book := dibs.put(book, e, new);
                IF e.id IS DISTINCT FROM c.id THEN
                    e.token := new.token;
                    e.slots := new.slots;
                    e.ttl := new.ttl;
                    pushes := pushes || dibs.notify(book.key, e,
                        CASE new.what WHEN 'hold' THEN 'granted' ELSE 'refused' END, now, own_inbox);
                END IF;
                head := NULL;
                steps := steps - 1;
            END LOOP;
            EXIT WHEN stage = 'end';

            -- -- the command itself

            writes := false;
            IF stage = 'rule' THEN
                stage := 'end';
                own := NULL;
                IF c.id IS NOT NULL THEN
                    own := dibs.get(book, c.id);
                END IF;
                new := own;
                IF own.what <> 'tomb' AND (c.kind = 'acquire' OR c.kind = 'renew' AND c.inbox <> '') THEN
                    new.inbox := c.inbox;  -- its owner may have reconnected
                END IF;
                CASE
                WHEN c.kind IN ('acquire', 'renew') AND own.what = 'place' THEN
                    writes := true;
                    IF own.units > book.capacity THEN
                        new := dibs.tomb(c.id, now, dibs.tombstone_ttl(), 'too_large');
                        reply := CASE c.kind WHEN 'acquire' THEN dibs.too_large()
                            ELSE dibs.lost('expired', 'too large') END;
                    ELSE
                        stage := 'line';
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
                    reply := CASE own.state WHEN 'too_large' THEN dibs.too_large() ELSE '["gone"]' END;

                WHEN c.kind = 'acquire' AND c.units > c.capacity THEN
                    reply := dibs.too_large();

                WHEN c.kind = 'acquire' THEN
                    stage := 'room';
                    book.capacity := c.capacity;  -- a greater one lets the queue in first

                WHEN c.kind = 'renew' THEN
                    writes := own.what = 'hold' AND new.inbox <> own.inbox;
                    reply := CASE own.state WHEN 'revoked' THEN dibs.lost('revoked', own.detail)
                        ELSE '["lost","expired",""]' END;

                WHEN c.kind = 'release' THEN
                    reply := CASE WHEN own.what IN ('hold', 'place') THEN '["released"]'
                        ELSE '["unknown"]' END;
                    IF own.state = 'retained' THEN
                        writes := c.bury > own.bury;
                        new.bury := c.bury;  -- a repeat never extends it
                    ELSIF own.what = 'hold' AND c.keep > 0 THEN
                        writes := true;
                        new := dibs.kept(own, now, c.keep, c.bury);
                    ELSIF own.what = 'tomb' THEN
                        writes := c.bury > 0;  -- its Acquire may have been sent again since
                        new.ttl := greatest(c.bury, least(own.expires - now, own.ttl));
                        new.expires := now + new.ttl;
                    ELSIF c.bury > 0 THEN
                        writes := true;
                        new := dibs.tomb(c.id, now, c.bury);
                    ELSE
                        writes := own.id IS NOT NULL;
                        new := NULL;
                    END IF;

                WHEN c.kind = 'resize' AND (own.what = 'hold' AND own.state <> 'retained') IS NOT TRUE THEN
                    reply := '["lost","expired",""]';

                WHEN c.kind = 'resize' AND own.state = 'revoked' THEN
                    reply := dibs.lost('revoked', own.detail);

                WHEN c.kind = 'resize' THEN
                    writes := true;
                    new.state := 'held';  -- its owner speaks, so it is claimed
                    new.ttl := greatest(0, least(own.expires - now, own.ttl));
                    new.expires := now + new.ttl;
                    IF c.seq > own.seq THEN
                        new.seq := c.seq;  -- also of what is refused: its late copy must not succeed
                        IF c.units <= own.units THEN
                            new.slots := own.slots[1:c.units::integer];
                            new.units := c.units;
                        ELSIF book.used - own.units + c.units <= book.capacity THEN
                            -- Growing ignores the queue: holders would else wait for those who wait for them.
                            book.taken := dibs.taken_slots(book);
                            book.last := dibs.next_token(book.last, stamp, 0);
                            new.token := book.last;
                            new.slots := dibs.free_slots(book, c.units, own.slots);
                            new.units := c.units;
                        END IF;
                    END IF;
                    IF c.seq = new.seq AND c.units > book.capacity AND c.units <> new.units THEN
                        reply := dibs.too_large();
                    ELSIF c.seq = new.seq AND c.units <> new.units THEN
                        reply := json_build_array('refused', 'held',
                            dibs.holders_shown(book, own.id, now, stamp),
                            greatest((SELECT min(h.expires) - now FROM dibs.first_to_end(book, 2) AS h
                                WHERE h.id <> own.id), 0));
                    ELSE
                        reply := dibs.granted(new);
                    END IF;

                WHEN c.kind = 'inspect' THEN
                    reply := dibs.status_of(book, now, stamp);

                WHEN c.kind = 'revoke' THEN
                    over := ARRAY(SELECT h FROM dibs.first_to_end(book, dibs.max_holders()) AS h
                        WHERE h.state <> 'retained' AND (c.lease IS NULL OR c.lease = dibs.fingerprint(h.id)));
                    ends_in := 0;
                    FOREACH e IN ARRAY over LOOP
                        pushes := pushes || dibs.notify(book.key, e, 'revoked', now, own_inbox, c.reason);
                        IF c.at_once THEN
                            new := dibs.tomb(e.id, now, dibs.tombstone_ttl(), 'revoked', c.reason);
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
                wish := dibs.place_of(c, now, stamp);
                IF dibs.fits(book, c.units, now, CASE WHEN c.queue THEN book.doubt ELSE 0 END) THEN
                    stage := 'granted';  -- a try passes only those that missed a heartbeat: others may live
                ELSIF c.queue THEN  -- rows do not bound a queue, so none is ever full
                    stage := 'line';
                    book.arrivals := book.arrivals + 1;
                    wish.arrival := book.arrivals;
                    new := wish;
                    ahead := dibs.ahead_of(book, new, true);
                ELSE
                    stage := 'end';
                    writes := false;
                    again := dibs.first_release(book) - now;
                    reply := json_build_array('refused', CASE WHEN (SELECT bool_and(h.state = 'retained')
                            FROM dibs.first_to_end(book, 8) AS h) THEN 'closed' ELSE 'held' END,
                        dibs.holders_shown(book, NULL, now, stamp),
                        CASE WHEN steps = 0 THEN 0 WHEN again < 'Infinity' THEN greatest(again, 0) ELSE 5 END);
                END IF;

            ELSIF stage = 'line' THEN
                stage := 'end';
                IF book.waiting <> waiting THEN
                    own := dibs.get(book, c.id);
                END IF;
                IF own.what = 'hold' THEN
                    stage := 'rule';  -- to claim it
                ELSIF NOT deferred AND dibs.fits(book, own.units, now, book.doubt) THEN
                    stage := 'granted';  -- from beyond what is looked at above
                    writes := true;
                    wish := own;
                ELSE
                    IF book.waiting <> waiting THEN
                        ahead := dibs.ahead_of(book, own, false);
                    END IF;
                    -- When its owner should send its next heartbeat.
                    wait := dibs.claim_timeout(own.grant_ttl);
                    IF steps = 0 THEN  -- there is more to do at once
                        again := 0;
                    ELSIF own.silence = wait AND ahead > 0 THEN
                        again := wait / 3;
                    ELSIF own.silence = wait THEN
                        again := least(wait / 3, greatest(dibs.first_release(book) - now, 0));
                    ELSE
                        again := least(own.ttl / 3, free_in,
                            wait + least(wait, greatest(dibs.first_release(book) - now, 0)));
                    END IF;
                    reply := json_build_array('queued', ahead, again, now);
                END IF;
            END IF;

            IF stage = 'line' THEN  -- its owner lives
                new.silence := dibs.claim_timeout(new.grant_ttl);
                IF ahead >= dibs.front() AND ahead - dibs.passed_over(book.key, least(ahead, dibs.sight()),
                    now, book.doubt) >= dibs.front()
                THEN
                    new.silence := 3 * new.silence;
                END IF;
                new.seen := book.last;
            ELSIF stage = 'granted' THEN
                stage := 'end';
                book.last := dibs.next_token(book.last, stamp, wish.floor);
                book.taken := dibs.taken_slots(book);
                new := dibs.hold_of(wish, book, 'held', CASE WHEN own.what = 'place'
                    THEN greatest(c.ttl, dibs.claim_timeout(own.grant_ttl)) ELSE c.ttl END, now, stamp);
                reply := dibs.granted(new);
            END IF;
            IF writes THEN
                IF own.what = 'place' OR new.what = 'place' THEN
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
            pushes := pushes || dibs.notify(book.key, head, 'head', now, own_inbox);
        END IF;
    END LOOP;
    PERFORM dibs.flush(book, was, now);
    RETURN ROW(replies, pushes);
END $$;
