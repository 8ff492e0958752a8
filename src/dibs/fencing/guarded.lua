-- One command on a key, unless a higher token was seen for a lease.
--
-- KEYS: one for each slot of the lease, with the highest token seen there; and the command's own key.
-- ARGV: the token, the command's name, and what follows its key.
-- Returns the command's reply, or which slot's token is higher, and that token.

local last = #KEYS
for slot = 1, last - 1 do
    local seen = redis.call('GET', KEYS[slot])
    if seen and tonumber(seen) > tonumber(ARGV[1]) then
        return {'stale', slot, seen}
    end
end
for slot = 1, last - 1 do
    redis.call('SET', KEYS[slot], ARGV[1]) -- first: what can't be raised must let nothing through
end
return {'done', redis.call(ARGV[2], KEYS[last], unpack(ARGV, 3))}
