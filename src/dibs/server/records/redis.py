"""Records in Redis or Valkey. A server that keeps nothing on disk forgets them when it restarts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dibs.errors import BackendUnavailable, DibsError
from dibs.server.records.bounds import (
    FORMAT,
    check_address,
    check_format,
    check_kind,
    check_page,
    check_value,
    unreadable,
)
from dibs.server.records.port import Conflict, Entry, Record
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


class RedisRecords:
    """One connection; a document is changed by a script, so that of several writers one wins.

    All keys are in one slot of a Cluster. A document is `{version}:{value}` in its kind's hash, a line of the
    log `{number}:{value}`.
    """

    def __init__(self, url: str) -> None:
        self._settings = read_url(url)
        self._line = Line(self._settings)

    # -- a life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._run(OPEN, (STATE,), again=True)

    async def close(self) -> None:
        self._line.close()

    async def worries(self) -> Sequence[str]:
        return await worries(self._line.ask)

    async def _run(
        self, script: bytes, keys: tuple[bytes, ...], *values: object, again: bool = False
    ) -> int:
        found = await self._ask(b"EVAL", script, len(keys), *keys, FORMAT, *values, again=again)
        return int(found)

    async def _ask(self, *words: Any, again: bool) -> Any:
        answer = await self._line.ask(*words, again=again)
        if isinstance(answer, ReplyError):
            raise self._meaning(answer)
        return answer

    def _meaning(self, answer: ReplyError) -> DibsError:
        """What an error of the server's or of our scripts means."""
        said = str(answer)
        if code_of(answer) == "DIBSFORMAT":
            found = said.split()[1]
            try:
                check_format(int(found) if found.isdigit() else found, self._place)
            except DibsError as error:
                return error
        if code_of(answer) == "DIBSCORRUPT" or "WRONGTYPE" in said:
            return unreadable(self._place, said.partition(" ")[2])
        return explain(answer, self._line.endpoint)

    @property
    def _place(self) -> str:
        return self._settings.shown

    # -- documents ----------------------------------------------------------------------------------

    async def revision(self) -> int:
        words = (b"HMGET", STATE, b"format", b"revision")
        format_, revision = await self._ask(*words, again=True)
        if format_ is not None:  # nothing was ever written, or all of it is gone
            check_format(self._number(format_), self._place)
        return 0 if revision is None else self._number(revision)

    async def get(self, kind: str, name: str) -> Record | None:
        check_address(kind, name)
        found = await self._ask(b"HGET", kind_key(kind), name, again=True)
        return None if found is None else self._record(kind, name.encode(), found)

    async def all(self, kind: str) -> Sequence[Record]:
        check_kind(kind)
        found = await self._ask(b"HGETALL", kind_key(kind), again=True)
        flat = (
            [part for pair in found.items() for part in pair] if isinstance(found, dict) else found
        )
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return sorted((self._record(kind, *pair) for pair in pairs), key=lambda record: record.name)

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        check_address(kind, name)
        check_value(value)
        await self._change(kind, name, expected, value)
        return Record(kind, name, value, expected + 1)

    async def delete(self, kind: str, name: str, expected: int) -> None:
        check_address(kind, name)
        await self._change(kind, name, expected)

    async def _change(self, kind: str, name: str, *more: object) -> None:
        keys = (STATE, kind_key(kind))
        if not await self._run(CHANGE, keys, name, *more):
            raise Conflict(f"{kind} {name!r}")

    # -- the log ------------------------------------------------------------------------------------

    async def append(self, value: bytes) -> int:
        check_value(value)
        return await self._run(APPEND, (STATE, LOG), value)

    async def log(self, before: int | None, limit: int) -> Sequence[Entry]:
        check_page(before, limit)
        start = b"+inf" if before is None else b"(%d" % before
        span = (start, b"-inf", b"BYSCORE", b"REV", b"LIMIT", 0, limit)
        lines = await self._ask(b"ZRANGE", LOG, *span, again=True)
        return [Entry(*self._numbered(line)) for line in lines]

    async def oldest(self, limit: int) -> Sequence[Entry]:
        check_page(None, limit)
        lines = await self._ask(b"ZRANGE", LOG, 0, limit - 1, again=True)
        return [Entry(*self._numbered(line)) for line in lines]

    async def forget(self, lines: Sequence[Entry]) -> None:
        if lines:
            members = (b"%d:%b" % (each.number, each.value) for each in lines)
            await self._ask(b"ZREM", LOG, *members, again=True)

    # -- what is read -------------------------------------------------------------------------------

    def _record(self, kind: str, name: bytes, found: bytes) -> Record:
        version, value = self._numbered(found)
        try:
            return Record(kind, name.decode(), value, version)
        except UnicodeDecodeError:
            raise unreadable(self._place, "a name that is no UTF-8") from None

    def _numbered(self, found: bytes) -> tuple[int, bytes]:
        number, colon, value = found.partition(b":")
        if not colon:
            raise unreadable(self._place, "a document without a version")
        return self._number(number), value

    def _number(self, found: bytes) -> int:
        if not found.isdigit():
            raise unreadable(self._place, "a number that is none")
        return int(found)


FORGETS = (
    "This Redis does not persist data. A restart loses all API keys, restrictions and directory "
    'placements. Set "appendonly yes" in Redis, or use --records postgresql://…'
)
EVICTS = (
    "This Redis can evict API keys, restrictions and directory placements (maxmemory-policy {policy}). "
    'Set "maxmemory-policy noeviction" in Redis, or use --records postgresql://…'
)


async def worries(ask: Callable[..., Awaitable[Any]]) -> Sequence[str]:
    """What it may do to records, as far as its user may know."""
    facts = facts_of(await ask(b"INFO", b"everything", again=True))
    if not facts:
        return ()
    asked = await ask(b"CONFIG", b"GET", b"maxmemory-policy", again=True)
    policy = setting_of(asked) or facts.get("maxmemory_policy", "noeviction")
    found = [] if facts.get("aof_enabled") == "1" else [FORGETS]
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
        found.append(EVICTS.format(policy=policy))
    return found


ATTEMPTS = 5
"""So often a command is sent on, at most."""

_ELSEWHERE = {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"}
"""With these answers another server may be the one to ask."""


class Line:
    """Asks one command after the other; connects when it has to."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dial = LoopDial()
        self._turn = asyncio.Lock()
        self._link: Link | None = None
        self._endpoint: Endpoint | None = None
        """The node of the Cluster that has the records, once that is known."""

    @property
    def endpoint(self) -> Endpoint:
        """Whom we talk to, for messages."""
        return self._link.endpoint if self._link else self._settings.endpoints[0]

    def close(self) -> None:
        """Hang up."""
        link, self._link, self._endpoint = self._link, None, None
        if link is not None:
            link.close()

    async def ask(self, *words: Any, again: bool = False) -> Any:
        """The answer to a command, which may be a `ReplyError`. Raises our own errors.

        With `again` it is asked once more over another connection if the first one broke.
        """
        async with self._turn:
            try:
                return await self._ask(words)
            except BackendUnavailable:
                if not again:
                    raise
            return await self._ask(words)

    async def _ask(self, words: tuple[Any, ...]) -> Any:
        answer: Any = None
        data = pack(words)
        for _ in range(ATTEMPTS):
            answer = (await self._send(data, 1))[-1]
            code = code_of(answer) if isinstance(answer, ReplyError) else ""
            if code in _ELSEWHERE:
                self.close()
            if code not in ("MOVED", "ASK") or self._settings.topology != "cluster":
                return answer
            _, _, there = read_redirection(str(answer), self.endpoint)
            self.close()
            self._endpoint = there
            if code == "ASK":
                answer = (await self._send(pack((b"ASKING",)) + data, 2))[-1]
                self.close()
                if not isinstance(answer, ReplyError):
                    return answer
        return answer

    async def _send(self, data: bytes, count: int) -> list[Any]:
        link = self._link
        if link is None or not link.usable:
            link = self._link = await self._connected()
        try:
            return await link.ask(data, count, self._settings.timeout)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | HiredisError):
                raise broken(error, link.endpoint) from error
            raise

    async def _connected(self) -> Link:
        settings = self._settings
        if settings.topology == "sentinel":
            return await connect_to_master(settings, self._dial)
        endpoints = [self._endpoint] if self._endpoint else list(settings.endpoints)
        self._endpoint = None
        errors: list[DibsError] = []
        for endpoint in endpoints:
            try:
                return await connect(settings, self._dial, endpoint)
            except BackendUnavailable as error:
                errors.append(error)
        raise BackendUnavailable("; ".join(dict.fromkeys(map(str, errors)))) from errors[0]


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
