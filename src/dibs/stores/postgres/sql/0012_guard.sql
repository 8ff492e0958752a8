-- A fencing guard for your own writes in this database: call it first in the transaction that writes.
--
-- It raises (SQLSTATE ZDF01) if a higher token has been seen for this key and slot, and else remembers
-- the token and keeps others waiting until the transaction ends. So whoever lost the lease and does not
-- know it can't write over what its successor wrote.

CREATE FUNCTION dibs.guard(key bytea, token bigint, slot integer DEFAULT 0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO dibs.fences AS f (key, slot, token) VALUES (guard.key, guard.slot, guard.token)
    ON CONFLICT ON CONSTRAINT fences_pkey DO UPDATE SET token = excluded.token
    WHERE f.token <= excluded.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease on % is no longer yours: token % is lower than one seen since',
            coalesce(nullif(encode(guard.key, 'escape'), ''), '(no key)'), guard.token
            USING ERRCODE = 'ZDF01', HINT = 'Give up: whoever holds the lease now has written already.';
    END IF;
END $$;

CREATE FUNCTION dibs.guard(key text, token bigint, slot integer DEFAULT 0) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS
    $$ SELECT dibs.guard(convert_to(key, 'UTF8'), token, slot) $$;
