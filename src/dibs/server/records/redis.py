"""Records in Redis or Valkey. A server that keeps nothing on disk forgets them when it restarts."""

from collections.abc import Sequence
from typing import Any

from dibs.backends.redis.link import ReplyError
from dibs.backends.redis.trouble import code_of, explain
from dibs.backends.redis.url import read_url
from dibs.errors import DibsError
from dibs.server.records import redis_scripts as scripts
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
from dibs.server.records.redis_line import Line
from dibs.server.records.redis_worries import worries


class RedisRecords:
    """One connection; a document is changed by a script, so that of several writers one wins."""

    def __init__(self, url: str) -> None:
        self._settings = read_url(url)
        self._line = Line(self._settings)

    # -- a life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._run(scripts.OPEN, (scripts.STATE,), again=True)

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
        words = (b"HMGET", scripts.STATE, b"format", b"revision")
        format_, revision = await self._ask(*words, again=True)
        if format_ is not None:  # nothing was ever written, or all of it is gone
            check_format(self._number(format_), self._place)
        return 0 if revision is None else self._number(revision)

    async def get(self, kind: str, name: str) -> Record | None:
        check_address(kind, name)
        found = await self._ask(b"HGET", scripts.kind_key(kind), name, again=True)
        return None if found is None else self._record(kind, name.encode(), found)

    async def all(self, kind: str) -> Sequence[Record]:
        check_kind(kind)
        found = await self._ask(b"HGETALL", scripts.kind_key(kind), again=True)
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
        keys = (scripts.STATE, scripts.kind_key(kind))
        if not await self._run(scripts.CHANGE, keys, name, *more):
            raise Conflict(f"{kind} {name!r}")

    # -- the log ------------------------------------------------------------------------------------

    async def append(self, value: bytes) -> int:
        check_value(value)
        return await self._run(scripts.APPEND, (scripts.STATE, scripts.LOG), value)

    async def log(self, before: int | None, limit: int) -> Sequence[Entry]:
        check_page(before, limit)
        start = b"+inf" if before is None else b"(%d" % before
        span = (start, b"-inf", b"BYSCORE", b"REV", b"LIMIT", 0, limit)
        lines = await self._ask(b"ZRANGE", scripts.LOG, *span, again=True)
        return [Entry(*self._numbered(line)) for line in lines]

    async def oldest(self, limit: int) -> Sequence[Entry]:
        check_page(None, limit)
        lines = await self._ask(b"ZRANGE", scripts.LOG, 0, limit - 1, again=True)
        return [Entry(*self._numbered(line)) for line in lines]

    async def forget(self, lines: Sequence[Entry]) -> None:
        if lines:
            members = (b"%d:%b" % (each.number, each.value) for each in lines)
            await self._ask(b"ZREM", scripts.LOG, *members, again=True)

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
