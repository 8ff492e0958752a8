"""The tables of the records in schema `dibs`, beside those of the leases, and all statements.

One row counts both revisions and lines. Whoever changes anything locks it, so what is read to be newer was
committed later, and a reader who remembers a number misses nothing.
"""

LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(5497853149204)"
"""Who makes the tables waits here for who does it already; the end of the transaction unlocks it."""

IS_THERE = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS class JOIN pg_catalog.pg_namespace AS schema
    ON schema.oid = class.relnamespace
    WHERE schema.nspname = 'dibs' AND class.relname = 'service_state')"""
"""`to_regclass` would answer from a cache that the wait for the lock does not bring up to date."""

TABLES = """
DO $$
BEGIN  -- IF NOT EXISTS would ask for the right to create schemas also where there is nothing to create
    IF to_regnamespace('dibs') IS NULL THEN
        CREATE SCHEMA dibs;
    END IF;
END $$;

CREATE TABLE dibs.service_records (
    kind text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, value bytea NOT NULL,
    version bigint NOT NULL, PRIMARY KEY (kind, name)
);
CREATE TABLE dibs.service_log (number bigint PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE dibs.service_state (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL, revision bigint NOT NULL DEFAULT 0, lines bigint NOT NULL DEFAULT 0
);

CREATE FUNCTION dibs.service_log_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the log of dibs is only added to';
END $$;
CREATE TRIGGER stays BEFORE UPDATE OR TRUNCATE ON dibs.service_log
    FOR EACH STATEMENT EXECUTE FUNCTION dibs.service_log_stays();
"""

FIRST = "INSERT INTO dibs.service_state (format) VALUES (%s)"

STATE = "SELECT format, revision FROM dibs.service_state"

GET = """
SELECT kind, name, value, version FROM dibs.service_records WHERE kind = %s AND name = %s"""

ALL = """
SELECT kind, name, value, version FROM dibs.service_records WHERE kind = %s ORDER BY name"""

_RISEN = """, risen AS (
    UPDATE dibs.service_state SET revision = revision + 1 WHERE EXISTS (SELECT FROM done))
SELECT count(*) FROM done"""

MAKE = f"""
WITH done AS (
    INSERT INTO dibs.service_records (value, kind, name, version) VALUES (%s, %s, %s, 1)
    ON CONFLICT DO NOTHING RETURNING 1){_RISEN}"""  # noqa: S608

CHANGE = f"""
WITH done AS (
    UPDATE dibs.service_records SET value = %s, version = version + 1
    WHERE kind = %s AND name = %s AND version = %s RETURNING 1){_RISEN}"""  # noqa: S608

REMOVE = f"""
WITH done AS (
    DELETE FROM dibs.service_records
    WHERE kind = %s AND name = %s AND version = %s RETURNING 1){_RISEN}"""  # noqa: S608

APPEND = """
WITH next AS (UPDATE dibs.service_state SET lines = lines + 1 RETURNING lines)
INSERT INTO dibs.service_log SELECT lines, %s FROM next RETURNING number"""

OLDEST = "SELECT number, value FROM dibs.service_log ORDER BY number LIMIT %s"

FORGET = """
WITH gone AS (DELETE FROM dibs.service_log WHERE number <= %s RETURNING 1) SELECT count(*) FROM gone"""

LOG = """
SELECT number, value FROM dibs.service_log WHERE number < %s ORDER BY number DESC LIMIT %s"""
