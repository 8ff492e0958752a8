-- Replies that several rules give, and core/ledger.py: what people may see, which is ages and remaining
-- times, never ids.

CREATE FUNCTION dibs.granted(token bigint, slots integer[], ttl double precision) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT '["Granted",' || token || ',[' || array_to_string(slots, ',') || '],' || ttl || ']'
$$;

CREATE FUNCTION dibs.too_large() RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT '["Refused","too_large",[],0]' $$;

CREATE FUNCTION dibs.lost(reason text DEFAULT 'expired', detail text DEFAULT '') RETURNS text
LANGUAGE sql STABLE AS $$ SELECT json_build_array('Lost', reason, detail)::text $$;

CREATE FUNCTION dibs.failed(reason text, detail text) RETURNS text
LANGUAGE sql STABLE AS $$ SELECT json_build_array('Failed', reason, detail)::text $$;

CREATE FUNCTION dibs.age(stamp bigint, since bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$ SELECT greatest(stamp - since, 0) / 1e6::double precision $$;

CREATE FUNCTION dibs.holder_of(h dibs.entry, now double precision, stamp bigint)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(CASE WHEN h.state = 'kept' THEN '' ELSE dibs.fingerprint(h.id) END,
        h.owner, h.token, h.units, h.slots, dibs.age(stamp, h.since), greatest(h.expires - now, 0), h.note,
        h.state, h.address, h.trace)
$$;

CREATE FUNCTION dibs.waiter_of(p dibs.places, stamp bigint) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(dibs.fingerprint(p.id), p.owner, p.units, -p.urgency,
        dibs.age(stamp, p.since), p.note, p.address, p.trace)
$$;

-- Eight of those in the way, but for the one that asks.
CREATE FUNCTION dibs.holders_shown(t dibs.turn, but text) RETURNS json
LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce(json_agg(dibs.holder_of(h, t.now, t.stamp)), '[]')
        FROM (SELECT * FROM dibs.first_to_end(t.book, 9) AS x WHERE x.id IS DISTINCT FROM but LIMIT 8)
            AS h;
END $$;
