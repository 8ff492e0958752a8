"""How records lie in Redis, and the scripts that change them.

All keys are in one slot of a Cluster, and a user who may use leases there may do all this: see `RIGHTS`
of the store. A document is `{version}:{value}` in its kind's hash, a line of the log `{number}:{value}`.
"""

_HEAD = b"dibs:service:{dibs}:"

STATE = _HEAD + b"state"
"""A hash: the format, the revision, the number of the log's last line."""

LOG = _HEAD + b"log"
"""A sorted set of lines."""


def kind_key(kind: str) -> bytes:
    """The hash of a kind's documents."""
    return b"%brecords:%b" % (_HEAD, kind.encode())


_CHECK = b"""
local format = redis.call('HGET', KEYS[1], 'format')
if not format then
    redis.call('HSET', KEYS[1], 'format', ARGV[1])
elseif format ~= ARGV[1] then
    return redis.error_reply('DIBSFORMAT ' .. format)
end
local function raised(field)
    local number = string.format('%.0f', (tonumber(redis.call('HGET', KEYS[1], field)) or 0) + 1)
    redis.call('HSET', KEYS[1], field, number)
    return number
end
"""

OPEN = _CHECK + b"return 1"
"""state; format."""

CHANGE = (
    _CHECK
    + b"""
local found = redis.call('HGET', KEYS[2], ARGV[2])
local version = 0
if found then
    version = tonumber(string.match(found, '^(%d+):'))
    if not version then
        return redis.error_reply('DIBSCORRUPT ' .. 'a document without a version')
    end
end
if version ~= tonumber(ARGV[3]) then
    return 0
end
if ARGV[4] then
    redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f', version + 1) .. ':' .. ARGV[4])
elseif found then
    redis.call('HDEL', KEYS[2], ARGV[2])
else
    return 1
end
raised('revision')
return 1
"""
)
"""state, kind's hash; format, name, expected version, and the value: without one, it is removed.

0 where the document is of another version.
"""

APPEND = (
    _CHECK
    + b"""
local number = raised('log')
redis.call('ZADD', KEYS[2], number, number .. ':' .. ARGV[2])
return tonumber(number)
"""
)
"""state, log; format, value."""
