-- What lies in the store.
--
-- `keys` has a row for each key that is not idle, with one of its holds inside: a lock that nobody else
-- wants is one row of one table. Further holds, places and tombs are rows of their own.
--
-- Times are seconds since 1970 as plain numbers, and stamps microseconds: no session's TimeZone bends
-- them. No index covers what the renewal or release of a lock that nobody else wants changes, and pages are
-- left half empty, so those updates are HOT: they touch one page, which cleans itself. There is no CHECK:
-- the server would read its text anew for every statement, which costs as much as the update itself.

DO $$
BEGIN  -- IF NOT EXISTS would ask for the right to create schemas also where there is nothing to create
    IF to_regnamespace('dibs') IS NULL THEN
        CREATE SCHEMA dibs;
    END IF;
END $$;

CREATE TABLE dibs.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    floor bigint NOT NULL DEFAULT 0,    -- the highest token of the keys that were thrown out
    swept bytea NOT NULL DEFAULT ''     -- where the next sweep goes on
);
INSERT INTO dibs.meta DEFAULT VALUES;

CREATE TABLE dibs.keys (
    key bytea PRIMARY KEY,
    last bigint NOT NULL DEFAULT 0,
    capacity bigint NOT NULL DEFAULT 0,
    arrivals bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,
    waiting integer NOT NULL DEFAULT 0,     -- how many rows it has in `places`,
    holds integer NOT NULL DEFAULT 0,       -- in `holds`,
    tombs integer NOT NULL DEFAULT 0,       -- and in `tombs`
    due double precision NOT NULL DEFAULT 'Infinity',       -- nothing of it ends earlier
    doubt bigint NOT NULL DEFAULT 0,        -- the newest token that nobody claimed
    touched double precision NOT NULL DEFAULT 0,            -- when it was written last
    taken bytea,                            -- a bit for each slot; null where only the hold inside has any
    -- the hold inside
    id text, owner text, token bigint, units bigint, slots integer[], ttl double precision,
    expires double precision, state text, seq bigint, lock_delay double precision,
    bury double precision, since bigint, note text, detail text, inbox text, address text, trace text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE dibs.holds (
    key bytea NOT NULL, id text COLLATE "C" NOT NULL, owner text NOT NULL, token bigint NOT NULL,
    units bigint NOT NULL, slots integer[] NOT NULL, ttl double precision NOT NULL,
    expires double precision NOT NULL, state text NOT NULL, seq bigint NOT NULL,
    lock_delay double precision NOT NULL, bury double precision NOT NULL, since bigint NOT NULL,
    note text NOT NULL, detail text NOT NULL, inbox text NOT NULL, address text NOT NULL,
    trace text NOT NULL,
    PRIMARY KEY (key, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX holds_due ON dibs.holds (key, expires, id);

CREATE TABLE dibs.places (
    key bytea NOT NULL, id text COLLATE "C" NOT NULL, owner text NOT NULL,
    units bigint NOT NULL,
    urgency bigint NOT NULL,    -- less the priority: the most urgent sorts first
    arrival bigint NOT NULL, grant_ttl double precision NOT NULL, ttl double precision NOT NULL,
    expires double precision NOT NULL,
    silence double precision NOT NULL,      -- seconds without a heartbeat until it is passed over
    seen bigint NOT NULL,                   -- the newest token at its last heartbeat
    floor bigint NOT NULL, lock_delay double precision NOT NULL, since bigint NOT NULL,
    note text NOT NULL, inbox text NOT NULL, address text NOT NULL, trace text NOT NULL,
    PRIMARY KEY (key, id),
    UNIQUE (key, urgency, arrival)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE dibs.tombs (
    key bytea NOT NULL, id text COLLATE "C" NOT NULL, ttl double precision NOT NULL,
    expires double precision NOT NULL, reason text NOT NULL, detail text NOT NULL,
    PRIMARY KEY (key, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX tombs_due ON dibs.tombs (key, expires);

-- The highest token that `dibs.guard` has let through.
CREATE TABLE dibs.fences (
    key bytea NOT NULL, slot integer NOT NULL, token bigint NOT NULL,
    PRIMARY KEY (key, slot)
) WITH (fillfactor = 70);
