"""`/v1/events`: what happens to locks, as server-sent events."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta
from starlette.types import ASGIApp

from dibs.core.names import Kind
from dibs.server.api.routing import SIGNED_IN, Operation
from dibs.server.api.schemas import Names, Strict
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.endless import ALIVE, Feed, endless, sse, sse_of
from dibs.server.lock_events import EVENTS_AT_ONCE, LOG_SIZE, LockEvent
from dibs.server.reach import heads_of, names_of
from dibs.stores.http.names import encoded
from dibs.stores.http.wire import to_wire


class EventsQuery(Strict, frozen=True):
    """Whose events are told."""

    prefix: Names = ""
    kind: Kind | None = None
    renewals: Annotated[bool, Meta(description="Tell of renewals too")] = False
    recent: Annotated[
        int,
        Meta(
            ge=0, le=LOG_SIZE, description="Begin with what has come of so many of the last events"
        ),
    ] = 0


async def events(call: Call) -> ASGIApp:
    """Tell what happens, from now on or from where the caller was."""
    asked = call.query(EventsQuery)
    return await endless(call, _opened(call, names_of(asked.prefix), asked), "event_streams")


@contextmanager
def _opened(call: Call, prefix: bytes, asked: EventsQuery) -> Generator[Feed]:
    feed = _Tail(call, prefix, asked)
    with call.service.activity.following(feed.news, renewals=asked.renewals):
        yield feed


class _Tail:
    """See `Feed`. Where it is in the log is all that it keeps, so a slow caller costs nothing."""

    def __init__(self, call: Call, prefix: bytes, asked: EventsQuery) -> None:
        self.news = asyncio.Event()
        self.behind = False
        self._call = call
        self._begins = tuple(head + prefix for head in heads_of(asked.kind))
        self._renewals = asked.renewals
        self._log = call.service.activity.log
        self._at = max(self._log.last - asked.recent, self._log.dropped)
        """The number of the last event that was looked at."""

    async def begin(self) -> bytes:
        said = self._call.header(b"last-event-id")
        service = self._call.service
        server, _, number = said.rpartition("-")
        resumes = server == service.server_id and _is_number(number)
        resumes = resumes and self._log.has_after(int(number))
        if resumes:
            self._at = int(number)
        if self._at < self._log.last:
            self.news.set()
        hello = {
            "server": service.server_id,
            "beat": service.limits.stream_beat,
            "now": round(time.time(), 3),
        }
        if resumes or not said:
            return sse("hello", hello, self._id)
        return sse("hello", hello) + sse("reset", await self._snapshot(), self._id)

    async def _snapshot(self) -> dict[str, object]:
        """What is in use now: the first of it, if it is much."""
        call = self._call
        most = call.service.limits.max_page
        found = await call.service.reader.read(call.principal, self._begins, None, most)
        return {
            "items": tuple(map(to_wire, found.items)),
            "cursor": None if found.cursor is None else encoded(found.cursor),
        }

    async def take(self) -> bytes:
        if not self._log.has_after(self._at):
            self.behind = True
            return b""
        found = self._log.after(self._at, EVENTS_AT_ONCE)
        if len(found) == EVENTS_AT_ONCE:
            self.news.set()
        parts: list[bytes] = []
        for event in found:
            self._at += 1
            if self._is_wanted(event):
                parts.append(sse_of(event, self._id))
        return b"".join(parts)

    def _is_wanted(self, event: LockEvent) -> bool:
        if not event.key.startswith(self._begins):
            return False
        if event.what == "renewed" and not self._renewals:
            return False
        return self._call.principal.may(Scope.READ, event.name)

    @property
    def _id(self) -> str:
        return f"{self._call.service.server_id}-{self._at}"

    def alive(self) -> bytes:
        """With where it is: what was left out need not be looked through again."""
        return f"id: {self._id}\n".encode() + ALIVE


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 16


ROUTES = (
    Operation(
        method="GET",
        path="/v1/events",
        needs=SIGNED_IN,
        handler=events,
        summary="What happens to locks; after an interruption, from where Last-Event-ID says",
        query=EventsQuery,
        answers={200: str},
        problems=(429, 503),
        media="text/event-stream",
    ),
)
