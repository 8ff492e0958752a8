"""`/v1/events` and `/v1/watch/…`: what happens to leases, as server-sent events."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from msgspec import Meta
from msgspec.json import encode
from starlette.types import ASGIApp

from dibs.core.names import Kind
from dibs.errors import DibsError
from dibs.model import Inspect, Status
from dibs.server.activity import Activity
from dibs.server.api.problems import ApiProblem
from dibs.server.api.reading import KeyReader, heads_of, names_of
from dibs.server.api.routing import SIGNED_IN, Caller, on_path, route
from dibs.server.api.schemas import EventsHello, EventShown, LookQuery, Names, Strict
from dibs.server.api.sse import ALIVE, EventStreams, Feed, sse
from dibs.server.auth.policy import Principal, Scope
from dibs.server.leases import LeaseService
from dibs.server.limits import Limits
from dibs.server.lock_events import EVENTS_AT_ONCE, LOG_SIZE, LockEvent, event_json
from dibs.server.quotas import FairQueue
from dibs.stores.http import wire
from dibs.stores.http.names import encoded
from dibs.stores.http.wire import StatusPage, to_wire

COST = 16
"""Cost of a look of `/v1/watch` among the reads of its API key."""

GAP = 0.1
"""Seconds between two looks of one stream at its key after events; those in between are sent together."""

LOOK_EVERY = 1.0
"""Seconds between two looks of one stream at its key without events, for changes by other servers."""


class EventsQuery(Strict, frozen=True):
    """Filters, and the first event."""

    prefix: Names = ""
    kind: Kind | None = None
    renewals: Annotated[bool, Meta(description="Send renewals too")] = False
    recent: Annotated[
        int,
        Meta(
            ge=0,
            le=LOG_SIZE,
            description="Begin with those that match among so many of the last events",
        ),
    ] = 0


@dataclass(eq=False)
class EventRoutes:
    """Streams of events, of all keys and of one."""

    _server_id: str
    _answers: EventStreams
    _activity: Activity
    _leases: LeaseService
    _reader: KeyReader
    _reading: FairQueue
    _limits: Limits

    @route(
        "GET",
        "/v1/events",
        SIGNED_IN,
        query=EventsQuery,
        answers={200: str},
        problems=(429, 503),
        media="text/event-stream",
        events={"hello": EventsHello, "reset": StatusPage, "message": EventShown, "bye": str},
    )
    async def events(self, caller: Caller, query: EventsQuery) -> ASGIApp:
        """Events of leases, from now on or from the one that Last-Event-ID names.

        `reset` has the keys in use, instead of missing events. `bye` announces the end of the stream.
        """
        names = names_of(query.prefix)
        begins = tuple(head + names for head in heads_of(query.kind))
        return self._answers.answer(caller, self._followed(caller, begins, query), "event_streams")

    @contextmanager
    def _followed(
        self, caller: Caller, begins: tuple[bytes, ...], query: EventsQuery
    ) -> Generator[Feed]:
        who = caller.principal

        async def snapshot() -> dict[str, object]:
            """The keys in use now: the first of them, if they are many."""
            found = await self._reader.read(who, begins, None, self._limits.max_page)
            return {
                "items": tuple(map(to_wire, found.items)),
                "cursor": None if found.cursor is None else encoded(found.cursor),
            }

        def is_wanted(event: LockEvent) -> bool:
            if not event.key.startswith(begins):
                return False
            return event.what != "renewed" or query.renewals

        hello = {"server": self._server_id, "beat": self._limits.stream_beat}
        last_id = caller.header(b"last-event-id")
        feed = _Events(self._activity, who, is_wanted, hello, last_id, query, snapshot)
        with self._activity.following(feed.news, renewals=query.renewals):
            yield feed

    @route(
        "GET",
        "/v1/watch/locks/{name}",
        on_path(Scope.READ),
        query=LookQuery,
        answers={200: str},
        problems=(429, 503),
        media="text/event-stream",
        events={"status": wire.Status, "message": EventShown, "bye": str},
    )
    async def watch(self, caller: Caller, name: bytes, query: LookQuery) -> ASGIApp:
        """The holders of a lock, now and after each change.

        Sends the state of the key first. Then it sends events as they happen, and the state after them.
        `bye` announces the end of the stream.
        """
        key = b"%b:%b" % (query.kind.encode(), name)
        return self._answers.answer(caller, self._watched(caller.principal, key))

    @contextmanager
    def _watched(self, who: Principal, key: bytes) -> Generator[Feed]:
        async def look() -> Status | None:
            async with self._reading.turn(who.key_id, COST):
                answer = await self._leases.ask(who, Inspect(key))
            if not isinstance(answer.reply, Status):
                return None
            self._activity.keys.observe(answer.reply, answer.sent)
            return answer.reply

        feed = _KeyEvents(self._activity, key, look)
        with self._activity.following(feed.news, key):
            ticking = asyncio.create_task(feed.tick())
            try:
                yield feed
            finally:
                ticking.cancel()


@lru_cache(EVENTS_AT_ONCE)  # many can follow the same events
def _encoded(event: LockEvent) -> bytes:
    return encode(event_json(event))


def _sse_of(event: LockEvent, number: str = "") -> bytes:
    return sse("", _encoded(event), number)


class _Events:
    """See `Feed`. It keeps only its position in the log, so a slow caller costs nothing."""

    def __init__(
        self,
        activity: Activity,
        who: Principal,
        is_wanted: Callable[[LockEvent], bool],
        hello: dict[str, object],
        last_id: str,
        query: EventsQuery,
        snapshot: Callable[[], Awaitable[dict[str, object]]],
    ) -> None:
        self.news = asyncio.Event()
        self.behind = False
        self._who = who
        self._is_wanted = is_wanted
        self._hello = hello
        self._last_id = last_id
        self._query = query
        self._snapshot = snapshot
        self._activity = activity
        self._log = activity.log
        self._at = max(self._log.last - query.recent, self._log.dropped)
        """The number of the last event that it has read."""

    async def begin(self) -> bytes:
        """Return `hello`, and the keys in use to a caller who has missed events."""
        server, _, number = self._last_id.rpartition("-")
        resumes = server == self._hello["server"] and _is_number(number)
        resumes = resumes and self._activity.has_after(int(number), renewals=self._query.renewals)
        if resumes:
            self._at = int(number)
        if self._at < self._log.last:
            self.news.set()
        hello = {**self._hello, "now": round(time.time(), 3)}
        if resumes or not self._last_id:
            return sse("hello", hello, self._id)
        return sse("hello", hello) + sse("reset", await self._snapshot(), self._id)

    async def take(self) -> bytes:
        """Return the next events that the caller wants and may read."""
        if not self._log.has_after(self._at):
            self.behind = True
            return b""
        found = self._log.after(self._at, EVENTS_AT_ONCE)
        if len(found) == EVENTS_AT_ONCE:
            self.news.set()
        parts: list[bytes] = []
        for event in found:
            self._at += 1
            if self._is_wanted(event) and self._who.may(Scope.READ, event.name):
                parts.append(_sse_of(event, self._id))
        return b"".join(parts)

    @property
    def _id(self) -> str:
        return f"{self._hello['server']}-{self._at}"

    def alive(self) -> bytes:
        """Return a comment with its position: events that were left out need not be read again."""
        return f"id: {self._id}\n".encode() + ALIVE


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 16


class _KeyEvents:
    """See `Feed`: the state of one key after each change."""

    behind = False

    def __init__(
        self, activity: Activity, key: bytes, look: Callable[[], Awaitable[Status | None]]
    ) -> None:
        self.news = asyncio.Event()
        self._key = key
        self._look = look
        self._log = activity.log
        self._at = self._log.last
        self._looked_at = 0.0
        self._is_due = False

    async def tick(self) -> None:
        """Have it look from time to time."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._is_due = True
            self.news.set()

    async def begin(self) -> bytes:
        """Return the state of the key."""
        return await self._state()

    async def take(self) -> bytes:
        """Return new events and the state after them."""
        events = self._events()
        if events is None:
            return await self._found() if self._is_due else b""
        wait = self._looked_at + GAP - asyncio.get_running_loop().time()
        if wait > 0:
            await asyncio.sleep(wait)
            events += self._events() or b""
        return events + await self._state()

    async def _found(self) -> bytes:
        """Look at the key. Returns the changes, and the state after them. A look that fails is repeated."""
        with suppress(DibsError, ApiProblem):
            state = await self._state()
            events = self._events()
            return b"" if events is None else events + state
        return b""

    def _events(self) -> bytes | None:
        """The events of the key; None without any. Empty if they were dropped from the log."""
        log = self._log
        if not log.has_after(self._at):
            self._at = log.last
            return b""
        found = log.after(self._at, EVENTS_AT_ONCE)
        if len(found) == EVENTS_AT_ONCE:
            self.news.set()
        self._at += len(found)
        mine = [event for event in found if event.key == self._key]
        return b"".join(map(_sse_of, mine)) if mine else None

    async def _state(self) -> bytes:
        status = await self._look()
        self._looked_at = asyncio.get_running_loop().time()
        self._is_due = False
        return b"" if status is None else sse("status", to_wire(status))

    def alive(self) -> bytes:
        """Return a comment."""
        return ALIVE
