"""Lists of held locks, of keys in use, and of the longest queues."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from dibs.core.names import MAX_NAME
from dibs.model import Inspect, Status
from dibs.server.api.problems import ApiProblem
from dibs.server.api.reading import (
    AT_ONCE,
    HEADS,
    PAGE_BYTES,
    KeyReader,
    KeysFound,
    heads_of,
    names_of,
    size_of,
)
from dibs.server.api.responses import bytes_response, encode, json_response
from dibs.server.api.routing import SEEING, SIGNED_IN, Caller, route
from dibs.server.api.schemas import ListQuery, LockPage, Names, Strict, lock_shown
from dibs.server.auth.policy import Principal, Scope
from dibs.server.leases import LeaseService
from dibs.server.limits import Limits
from dibs.stores.http.names import MARK, decoded, encoded
from dibs.stores.http.wire import Status as StatusShown
from dibs.stores.http.wire import StatusPage, to_wire

USUAL_LOCKS = 100
"""Locks on a page, unless `limit` says otherwise."""

MAX_QUEUES = 200
"""Queues that are shown at a time."""

QUEUE_PAGES = 16
"""Pages of keys that are read for the queues of one answer."""


class ScanQuery(Strict, frozen=True):
    """A prefix of keys, or of names of every kind, and the key before the page, in base64."""

    prefix: Annotated[str, Meta(max_length=1024, description="What keys begin with, in base64")] = (
        ""
    )
    names: Names = ""
    cursor: Annotated[str, Meta(max_length=1024)] = ""
    limit: Annotated[int, Meta(ge=1)] = 100


class QueuesQuery(Strict, frozen=True):
    """A prefix of names, and the number of queues to show."""

    names: Names = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_QUEUES)] = 50


class Queues(Struct, frozen=True):
    """The longest queues of the keys that were read."""

    items: tuple[StatusShown, ...]
    count: int
    """Queues of these keys, shown or not."""
    complete: bool
    """Whether all keys were read. The service reads a bounded number of them for one answer."""


class _AfterLocks(Struct, frozen=True):
    next: str | None


class _AfterKeys(Struct, frozen=True):
    cursor: str | None


@dataclass(eq=False)
class ListingRoutes:
    """Pages of the keys that a caller may read."""

    _leases: LeaseService
    _reader: KeyReader
    _limits: Limits

    # -- locks --------------------------------------------------------------------------------------

    @route(
        "GET",
        ("/v1/locks", "/v1/locks/"),
        SIGNED_IN,
        summary="All locks that are held, and that this API key has permission to read",
        query=ListQuery,
        answers={200: LockPage},
    )
    @route(
        "GET",
        "/v1/locks/{dir}/",
        SEEING,
        summary="Locks that are held in a directory and below it",
        query=ListQuery,
        answers={200: LockPage},
    )
    async def locks(self, caller: Caller, directory: bytes, query: ListQuery) -> Response:
        """A page of held locks, in a directory and below it."""
        limit, most = query.limit or USUAL_LOCKS, self._limits.max_page
        if limit > most:
            raise ApiProblem(
                "malformed", f"`limit` must be at most {most}: get more pages with `from`"
            )
        kind = b"" if query.kind == "all" else query.kind.encode() + b":"
        heads = heads_of(None if query.kind == "all" else query.kind)
        prefixes = [head + directory for head in heads]
        start = None if query.from_ is None else _start(query.from_, kind)
        found = await self._page_from(caller.principal, prefixes, start, limit)
        items = [each for each in found.items if each.holders]
        # a key that begins so, and ends in a zero, is the very next one after the last
        following = None if found.cursor is None else encoded(found.cursor[len(kind) :] + b"\0")
        return await _page("locks", items, lock_shown, _AfterLocks(following))

    async def _page_from(
        self, who: Principal, prefixes: Sequence[bytes], start: bytes | None, limit: int
    ) -> KeysFound:
        """The page that begins at `start`."""
        read = self._reader.read
        if start is None:
            return await read(who, prefixes, None, limit)
        if start.endswith(b"\0"):
            return await read(who, prefixes, start[:-1], limit)
        first: list[Status] = []
        if start.startswith(tuple(prefixes)) and who.may(Scope.READ, start.partition(b":")[2]):
            reply = (await self._leases.ask(who, Inspect(start))).reply
            first = [reply] if isinstance(reply, Status) else []
        if len(first) == limit:
            return KeysFound(first, start)
        found = await read(who, prefixes, start, limit - len(first))
        return KeysFound([*first, *found.items], found.cursor)

    # -- keys in use, and queues --------------------------------------------------------------------

    @route("GET", "/v1/scan", SIGNED_IN, query=ScanQuery, answers={200: StatusPage})
    async def scan(self, caller: Caller, query: ScanQuery) -> Response:
        """Keys in use, of every kind, that this API key has permission to read."""
        try:
            prefixes, cursor = _prefixes(query), decoded(query.cursor) or None
        except ValueError:
            raise ApiProblem("malformed", "`prefix` and `cursor` must be URL-safe base64") from None
        limit = min(query.limit, self._limits.max_page)
        found = await self._reader.read(caller.principal, prefixes, cursor, limit)
        following = None if found.cursor is None else encoded(found.cursor)
        return await _page("items", found.items, to_wire, _AfterKeys(following))

    @route("GET", "/v1/queues", SIGNED_IN, query=QueuesQuery, answers={200: Queues})
    async def queues(self, caller: Caller, query: QueuesQuery) -> Response:
        """Queues, longest first.

        They are the longest among the first keys in use.
        """
        who, names = caller.principal, names_of(query.names)
        longest, count, cursor = list[Status](), 0, None
        for _ in range(QUEUE_PAGES):
            prefixes = [head + names for head in HEADS]
            found = await self._reader.read(who, prefixes, cursor, self._limits.max_page)
            waited_for = [each for each in found.items if each.waiting]
            longest = nsmallest(
                query.limit, [*longest, *waited_for], lambda status: (-status.waiting, status.key)
            )
            count += len(waited_for)
            cursor = found.cursor
            if cursor is None:
                break
        shown = tuple(map(to_wire, _first_of(longest)))
        return json_response(Queues(shown, count, complete=cursor is None))


def _start(text: str, kind: bytes) -> bytes:
    """The key at which the page begins. With kind=all, `from` contains the kind."""
    try:
        name = decoded(text.removeprefix(MARK))
    except ValueError:
        raise ApiProblem("malformed", "`from` must be `next` of the previous page") from None
    if not 1 <= len(name) <= MAX_NAME + 16:
        raise ApiProblem("malformed", "`from` is longer than a name can be")
    return kind + name


def _prefixes(query: ScanQuery) -> Sequence[bytes]:
    if not query.names:
        prefix = decoded(query.prefix)
        heads = [head for head in HEADS if head.startswith(prefix) or prefix.startswith(head)]
        return [head if head.startswith(prefix) else prefix for head in heads]
    if query.prefix:
        raise ApiProblem("malformed", "give either `prefix` (of keys) or `names`, not both")
    names = names_of(query.names)
    return [head + names for head in HEADS]


async def _page[T](
    name: str, items: Sequence[T], shape: Callable[[T], object], rest: Struct
) -> Response:
    """An object with `items` as `name` and the fields of `rest`. Other requests run in between."""
    parts: list[bytes] = []
    for at in range(0, len(items), AT_ONCE):
        parts += [encode(shape(each)) for each in items[at : at + AT_ONCE]]
        await asyncio.sleep(0)
    head = b'{"%b":[%b],' % (name.encode(), b",".join(parts))
    return bytes_response(head + encode(rest)[1:], "application/json")


def _first_of(items: Iterable[Status]) -> Iterable[Status]:
    """The same, up to the one that brings them above `PAGE_BYTES`."""
    size = 0
    for each in items:
        if size >= PAGE_BYTES:
            return
        yield each
        size += size_of(each)
