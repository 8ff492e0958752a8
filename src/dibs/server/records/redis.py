"""Records in Redis or Valkey. A server that persists nothing loses them when it restarts."""

import asyncio
from collections.abc import Sequence
from typing import Any

from dibs.errors import BackendUnavailable, DibsError
from dibs.server.records.port import (
    FORMAT,
    Conflict,
    LogEntry,
    Record,
    check_format,
    check_value,
    unreadable,
)
from dibs.stores.redis.aio import LoopDial
from dibs.stores.redis.connection import (
    HiredisError,
    Link,
    ReplyError,
    connect,
    connect_to_master,
    pack,
)
from dibs.stores.redis.errors import broken, code_of, explain
from dibs.stores.redis.health import facts_of, setting_of
from dibs.stores.redis.routing import read_redirection
from dibs.stores.redis.url import Endpoint, Settings, read_url

# All keys are in one slot of a Cluster.
_PREFIX = b"dibs:service:{dibs}:"

STATE = _PREFIX + b"state"
"""A hash: the format, the revision, the number of the last line of the log."""

LOG = _PREFIX + b"log"
"""A sorted set with a member `{number}:{value}` for each line."""


def kind_key(kind: str) -> bytes:
    """The hash with the documents of a kind: `{version}:{value}` by name."""
    return b"%brecords:%b" % (_PREFIX, kind.encode())


FORGETS = (
    "This Redis does not persist data. A restart loses all API keys, restrictions and directory "
    'placements. Set "appendonly yes" in Redis, or use --records postgresql://…'
)
EVICTS = (
    "This Redis can evict API keys, restrictions and directory placements (maxmemory-policy {policy}). "
    'Set "maxmemory-policy noeviction" in Redis, or use --records postgresql://…'
)


class RedisRecords:
    """See `Records`. A script makes each change, so that of several writers one wins."""

    def __init__(self, url: str) -> None:
        self._settings = read_url(url)
        self._server = _Server(self._settings)

    async def open(self) -> None:
        await self._run(OPEN, again=True)

    async def close(self) -> None:
        self._server.close()

    async def warnings(self) -> Sequence[str]:
        ask = self._server.ask  # an ACL may refuse these commands
        facts = facts_of(await ask(b"INFO", b"everything", again=True))
        if not facts:
            return ()
        asked = await ask(b"CONFIG", b"GET", b"maxmemory-policy", again=True)
        policy = setting_of(asked) or facts.get("maxmemory_policy", "noeviction")
        found = [] if facts.get("aof_enabled") == "1" else [FORGETS]
        if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
            found.append(EVICTS.format(policy=policy))
        return found

    async def _run(
        self, script: bytes, *keys: bytes, values: Sequence[object] = (), again: bool = False
    ) -> int:
        keys = (STATE, *keys)
        answer = await self._ask(b"EVAL", script, len(keys), *keys, FORMAT, *values, again=again)
        return int(answer)

    async def _ask(self, *words: Any, again: bool = True) -> Any:
        answer = await self._server.ask(*words, again=again)
        if isinstance(answer, ReplyError):
            raise self._error(answer)
        return answer

    def _error(self, answer: ReplyError) -> DibsError:
        """An error of the server or of our scripts, as one of Dibs."""
        said = str(answer)
        if code_of(answer) == "DIBSFORMAT":
            found = said.split()[1]
            try:
                check_format(int(found) if found.isdigit() else found, self._place)
            except DibsError as error:
                return error
        if code_of(answer) == "DIBSCORRUPT" or "WRONGTYPE" in said:
            return unreadable(self._place, said.partition(" ")[2])
        return explain(answer, self._server.endpoint)

    @property
    def _place(self) -> str:
        return self._settings.shown

    # -- documents ----------------------------------------------------------------------------------

    async def revision(self) -> int:
        format_, revision = await self._ask(b"HMGET", STATE, b"format", b"revision")
        if format_ is not None:  # otherwise nothing was ever written, or Redis has lost everything
            check_format(self._number(format_), self._place)
        return 0 if revision is None else self._number(revision)

    async def get(self, kind: str, name: str) -> Record | None:
        found = await self._ask(b"HGET", kind_key(kind), name)
        return None if found is None else self._record(kind, name.encode(), found)

    async def all(self, kind: str) -> Sequence[Record]:
        flat = await self._ask(b"HGETALL", kind_key(kind))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return sorted((self._record(kind, *pair) for pair in pairs), key=lambda record: record.name)

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        check_value(value)
        await self._change(kind, name, expected, value)
        return Record(kind, name, value, expected + 1)

    async def delete(self, kind: str, name: str, expected: int) -> None:
        await self._change(kind, name, expected)

    async def _change(self, kind: str, name: str, *values: object) -> None:
        if not await self._run(CHANGE, kind_key(kind), values=(name, *values)):
            raise Conflict(f"{kind} {name!r}")

    # -- the log ------------------------------------------------------------------------------------

    async def append(self, value: bytes) -> int:
        check_value(value)
        return await self._run(APPEND, LOG, values=(value,))

    async def log(self, before: int | None, limit: int) -> Sequence[LogEntry]:
        start = b"+inf" if before is None else b"(%d" % before
        page = (start, b"-inf", b"BYSCORE", b"REV", b"LIMIT", 0, limit)
        return [LogEntry(*self._split(line)) for line in await self._ask(b"ZRANGE", LOG, *page)]

    async def oldest(self, limit: int) -> Sequence[LogEntry]:
        lines = await self._ask(b"ZRANGE", LOG, 0, limit - 1)
        return [LogEntry(*self._split(line)) for line in lines]

    async def forget(self, lines: Sequence[LogEntry]) -> None:
        if lines:
            await self._ask(b"ZREM", LOG, *(b"%d:%b" % (each.number, each.value) for each in lines))

    # -- what was stored ----------------------------------------------------------------------------

    def _record(self, kind: str, name: bytes, found: bytes) -> Record:
        version, value = self._split(found)
        try:
            return Record(kind, name.decode(), value, version)
        except UnicodeDecodeError:
            raise unreadable(self._place, "a name that is no UTF-8") from None

    def _split(self, found: bytes) -> tuple[int, bytes]:
        number, colon, value = found.partition(b":")
        if not colon:
            raise unreadable(self._place, "a document without a version")
        return self._number(number), value

    def _number(self, found: bytes) -> int:
        if not found.isdigit():
            raise unreadable(self._place, "a number that is none")
        return int(found)


# ---- the connection -------------------------------------------------------------------------------

MAX_HOPS = 5
"""Servers that one command is sent to, at most."""

_ELSEWHERE = {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"}
"""After these answers the next command goes over a new connection, perhaps to another server."""


class _Server:
    """The connection to the server with the records. Commands wait for each other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dial = LoopDial()
        self._turn = asyncio.Lock()
        self._link: Link | None = None
        self._owner: Endpoint | None = None
        """The node of the Cluster that has the records, once it is known."""

    @property
    def endpoint(self) -> Endpoint:
        """The server's address, for messages."""
        return self._link.endpoint if self._link else self._settings.endpoints[0]

    def close(self) -> None:
        """Close the connection."""
        link, self._link, self._owner = self._link, None, None
        if link is not None:
            link.close()

    async def ask(self, *words: Any, again: bool) -> Any:
        """The answer to a command, which can be a `ReplyError`. Raises errors of Dibs.

        With `again`, the command is repeated once if the connection breaks.
        """
        command = pack(words)
        async with self._turn:
            try:
                return await self._follow(command)
            except BackendUnavailable:
                if not again:
                    raise
            return await self._follow(command)

    async def _follow(self, command: bytes) -> Any:
        """The answer to a command, sent to where a Cluster redirects it."""
        words, answer = [command], None
        for _ in range(MAX_HOPS):
            answer = await self._send(words)
            code = code_of(answer) if isinstance(answer, ReplyError) else ""
            if code in _ELSEWHERE:
                self.close()
            if code not in ("MOVED", "ASK") or self._settings.topology != "cluster":
                break
            _, _, owner = read_redirection(str(answer), self.endpoint)
            self.close()
            self._owner = owner
            words = [pack((b"ASKING",)), command] if code == "ASK" else [command]
        return answer

    async def _send(self, words: Sequence[bytes]) -> Any:
        link = self._link
        if link is None or not link.usable:
            link = self._link = await self._connect()
        try:
            return (await link.ask(b"".join(words), len(words), self._settings.timeout))[-1]
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | HiredisError):
                raise broken(error, link.endpoint) from error
            raise

    async def _connect(self) -> Link:
        settings = self._settings
        if settings.topology == "sentinel":
            return await connect_to_master(settings, self._dial)
        endpoints = [self._owner] if self._owner else settings.endpoints
        self._owner = None
        errors: list[DibsError] = []
        for endpoint in endpoints:
            try:
                return await connect(settings, self._dial, endpoint)
            except BackendUnavailable as error:
                errors.append(error)
        raise BackendUnavailable("; ".join(dict.fromkeys(map(str, errors)))) from errors[0]


# ---- scripts --------------------------------------------------------------------------------------
# KEYS[1] is the state, ARGV[1] the format.

_CHECK = b"""
local format = redis.call('HGET', KEYS[1], 'format')
if not format then
    redis.call('HSET', KEYS[1], 'format', ARGV[1])
elseif format ~= ARGV[1] then
    return redis.error_reply('DIBSFORMAT ' .. format)
end
local function next_number(field)
    local number = string.format('%.0f', (tonumber(redis.call('HGET', KEYS[1], field)) or 0) + 1)
    redis.call('HSET', KEYS[1], field, number)
    return number
end
"""

OPEN = _CHECK + b"return 1"

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
elseif redis.call('HDEL', KEYS[2], ARGV[2]) == 0 then
    return 0
end
next_number('revision')
return 1
"""
)
"""KEYS[2] is the hash of the kind. Further arguments: name, expected version, and the value, unless the
document is to be removed. Returns 0 if the document has another version."""

APPEND = (
    _CHECK
    + b"""
local number = next_number('log')
redis.call('ZADD', KEYS[2], number, number .. ':' .. ARGV[2])
return tonumber(number)
"""
)
"""KEYS[2] is the log. Further argument: the value."""
