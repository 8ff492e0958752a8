-- What a book is made of: entries, wakeups, and the turn that carries both through the ledger.

CREATE TYPE dibs.entry AS (
    stored text,
    what text,                          -- hold, place, or tomb
    id text, ttl double precision, expires double precision, detail text,
    -- holds and places
    owner text, units bigint, lock_delay double precision, since bigint, note text, inbox text,
    address text, trace text,
    -- holds
    token bigint, slots integer[], state text, seq bigint, bury double precision,
    -- places
    urgency bigint, arrival bigint, grant_ttl double precision, silence double precision,
    seen bigint, floor bigint,
    -- tombs
    reason text
);

CREATE TYPE dibs.wakeup AS (
    lease text, inbox text, event text, token bigint, slots integer[], granted_at double precision,
    wait double precision, detail text, proof text
);

-- `core/turn.py`'s Turn, with room for what its methods return beside the changed turn.
CREATE TYPE dibs.turn AS (
    book dibs.keys,
    now double precision,
    stamp bigint,
    caller text,
    wakeups dibs.wakeup[],
    head dibs.places,              -- who comes first; null where nobody has looked yet
    deferred boolean,                   -- in a transaction of a user's: nobody is granted before it ends
    reply text,                         -- of a rule
    granted bigint,                     -- by take_token
    left_over double precision,         -- by extend: how long it lives
    steps integer,                      -- how many entries this turn may still end, and waiters grant
    batch_steps integer,                -- how many all turns of the batch
    free_in double precision,           -- when what is granted or closed now is free again by time; or null
    again boolean                       -- by grant_next: look once more
);

CREATE FUNCTION dibs.inner_hold(book dibs.keys) RETURNS dibs.entry
LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW('keys', 'hold', book.id, book.ttl, book.expires, book.detail, book.owner, book.units,
        book.lock_delay, book.since, book.note, book.inbox, book.address, book.trace, book.token, book.slots, book.state,
        book.seq, book.bury, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::dibs.entry
$$;

CREATE FUNCTION dibs.entry(h dibs.holds) RETURNS dibs.entry
LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW('holds', 'hold', h.id, h.ttl, h.expires, h.detail, h.owner, h.units,
        h.lock_delay, h.since, h.note, h.inbox, h.address, h.trace, h.token, h.slots, h.state,
        h.seq, h.bury, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::dibs.entry
$$;

CREATE FUNCTION dibs.entry(p dibs.places) RETURNS dibs.entry
LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW('places', 'place', p.id, p.ttl, p.expires, NULL, p.owner, p.units,
        p.lock_delay, p.since, p.note, p.inbox, p.address, p.trace, NULL, NULL, NULL,
        NULL, NULL, p.urgency, p.arrival, p.grant_ttl, p.silence, p.seen,
        p.floor, NULL)::dibs.entry
$$;

CREATE FUNCTION dibs.entry(t dibs.tombs) RETURNS dibs.entry
LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW('tombs', 'tomb', t.id, t.ttl, t.expires, t.detail, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, t.reason)::dibs.entry
$$;
