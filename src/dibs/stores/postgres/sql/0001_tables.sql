-- What lies in the store.
--
-- `keys` has a row for each key that is not idle. One of its holds is inside that row, so that a lock that
-- nobody else wants is one row of one table. Further holds, waiters and tombstones are rows of `entries`.
--
-- Times are seconds since 1970 as plain numbers, and stamps microseconds: the TimeZone of a session changes
-- nothing. No index covers what the renewal or release of a lock that nobody else wants changes, and pages
-- are left half empty, so those updates are HOT: they touch one page, which cleans itself. There is no CHECK:
-- the server would parse its text again for every statement, which costs as much as the update itself.

DO $$
BEGIN  -- IF NOT EXISTS would ask for the right to create schemas also where there is nothing to create
    IF to_regnamespace('dibs') IS NULL THEN
        CREATE SCHEMA dibs;
    END IF;
END $$;

CREATE TABLE dibs.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    floor bigint NOT NULL DEFAULT 0,    -- the highest token of the keys that were removed
    swept bytea NOT NULL DEFAULT ''     -- where the next sweep goes on
);
INSERT INTO dibs.meta DEFAULT VALUES;

CREATE TABLE dibs.entries (
    key bytea, id text COLLATE "C",
    what text NOT NULL,                 -- hold, place (in the queue), or tomb
    state text NOT NULL,                -- of a hold: held, unclaimed, revoked, kept; of a tomb: why
    ttl double precision NOT NULL, expires double precision NOT NULL,
    detail text NOT NULL,               -- why it was revoked
    -- holds and places
    owner text, units bigint, lock_delay double precision, since bigint, note text,
    inbox text, address text, trace text,
    -- holds
    token bigint, slots integer[], seq bigint, bury double precision,
    -- places
    urgency bigint,                     -- less the priority: the most urgent sorts first
    arrival bigint, grant_ttl double precision, floor bigint,
    silence double precision,           -- seconds without a heartbeat until it is passed over
    seen bigint,                        -- the newest token at its last heartbeat
    PRIMARY KEY (key, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX entries_due ON dibs.entries (key, what, expires, id);
CREATE UNIQUE INDEX entries_queue ON dibs.entries (key, urgency, arrival) WHERE what = 'place';

CREATE TABLE dibs.keys (
    key bytea PRIMARY KEY,
    last bigint NOT NULL DEFAULT 0,         -- its newest token
    capacity bigint NOT NULL DEFAULT 0,
    arrivals bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,         -- how many units all its holds have
    waiting integer NOT NULL DEFAULT 0,     -- how many places it has in `entries`,
    holds integer NOT NULL DEFAULT 0,       -- how many holds there,
    tombs integer NOT NULL DEFAULT 0,       -- and how many tombstones
    due double precision NOT NULL DEFAULT 'Infinity',       -- nothing of it ends earlier
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
