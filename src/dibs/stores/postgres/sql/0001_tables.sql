-- What lies in the store.
--
-- `keys` has a row for each key that is not idle. One of its holds is inside that row, so a lock that nobody
-- else wants is one row of one table. Further holds, waiters and tombstones are rows of `entries`.
--
-- Times are seconds since 1970, and stamps microseconds, so a session's TimeZone changes nothing. No index
-- covers what renewing or releasing an uncontended lock changes, and pages are left half empty, so those
-- updates are HOT. There is no CHECK: the server would parse it again for every statement, which costs as
-- much as the update itself.

DO $$
BEGIN  -- IF NOT EXISTS would ask for the right to create schemas also where there is nothing to create
    IF to_regnamespace('dibs') IS NULL THEN
        CREATE SCHEMA dibs;
    END IF;
END $$;

CREATE TABLE dibs.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    floor bigint NOT NULL DEFAULT 0,    -- the highest token of all removed keys
    swept bytea NOT NULL DEFAULT ''     -- the next sweep goes on behind this key
);
INSERT INTO dibs.meta DEFAULT VALUES;

CREATE TABLE dibs.entries (
    key bytea, id text COLLATE "C",
    what text NOT NULL,                 -- hold, waiter or tombstone
    state text NOT NULL,                -- of a hold: held, unclaimed, revoked, retained; of a tombstone: why
    ttl double precision NOT NULL, expires double precision NOT NULL,
    detail text NOT NULL,               -- why it was revoked
    -- holds and waiters
    owner text, units bigint, lock_delay double precision, since bigint, note text,
    inbox text, address text, trace text,
    -- holds
    token bigint, slots integer[], seq bigint,
    tombstone double precision,         -- seconds for which to remember the id of a retained hold
    -- waiters
    urgency bigint,                     -- minus the priority: the most urgent sorts first
    arrival bigint, grant_ttl double precision, floor bigint,
    silence double precision,           -- seconds without a heartbeat until it is passed over
    seen bigint,                        -- the newest token at its last heartbeat
    PRIMARY KEY (key, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX entries_due ON dibs.entries (key, what, expires, id);
CREATE UNIQUE INDEX entries_queue ON dibs.entries (key, urgency, arrival) WHERE what = 'waiter';

CREATE TABLE dibs.keys (
    key bytea PRIMARY KEY,
    last bigint NOT NULL DEFAULT 0,         -- its newest token
    capacity bigint NOT NULL DEFAULT 0,
    arrivals bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,         -- units of all its holds
    waiting integer NOT NULL DEFAULT 0,     -- its waiters in `entries`,
    holds integer NOT NULL DEFAULT 0,       -- its holds there,
    tombstones integer NOT NULL DEFAULT 0,  -- and its tombstones
    due double precision NOT NULL DEFAULT 'Infinity',       -- nothing of it expires earlier
    doubt bigint NOT NULL DEFAULT 0,        -- the newest token that nobody claimed
    touched double precision NOT NULL DEFAULT 0,            -- when it was written last
    taken bytea,                            -- a bit for each slot; null where only the hold inside has any
    hold dibs.entries                       -- the hold inside
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- The highest token that `dibs.guard` has accepted.
CREATE TABLE dibs.fences (
    key bytea NOT NULL, slot integer NOT NULL, token bigint NOT NULL,
    PRIMARY KEY (key, slot)
) WITH (fillfactor = 70);
