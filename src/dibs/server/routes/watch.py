"""`/v1/watch/locks/base64:{name}`: one lock, now and with every change, as server-sent events."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from starlette.types import ASGIApp

from dibs.model import Inspect, Status
from dibs.server.api.routing import Operation, on_path
from dibs.server.api.schemas import LookQuery
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.endless import ALIVE, Feed, endless, sse, sse_of
from dibs.server.lock_events import EVENTS_AT_ONCE
from dibs.stores.http.wire import to_wire

COST = 16
"""What a look counts among the reads of its API key: four streams of one key look at a time."""

GAP = 0.1
"""Seconds between two looks at one lock for one caller; what happens meanwhile is told together."""


async def watch(call: Call) -> ASGIApp:
    """Tell who holds it, and what happens to it."""
    asked = call.query(LookQuery)
    return await endless(call, _opened(call, call.key(asked.kind)))


@contextmanager
def _opened(call: Call, key: bytes) -> Generator[Feed]:
    feed = _Changes(call, key)
    with call.service.activity.following(feed.news, key):
        yield feed


class _Changes:
    """See `Feed`."""

    behind = False

    def __init__(self, call: Call, key: bytes) -> None:
        self.news = asyncio.Event()
        self._call = call
        self._key = key
        self._log = call.service.activity.log
        self._at = self._log.last
        self._looked_at = 0.0

    async def begin(self) -> bytes:
        return await self._status()

    async def take(self) -> bytes:
        told = self._told()
        if told is None:
            return b""
        wait = self._looked_at + GAP - self._call.service.now()
        if wait > 0:
            await asyncio.sleep(wait)
            told += self._told() or b""
        return told + await self._status()

    def _told(self) -> bytes | None:
        """What has happened to it; None for nothing."""
        log = self._log
        if not log.has_after(self._at):  # it can't be told any more what it was
            self._at = log.last
            return b""
        found = log.after(self._at, EVENTS_AT_ONCE)
        if len(found) == EVENTS_AT_ONCE:
            self.news.set()
        self._at += len(found)
        mine = [event for event in found if event.key == self._key]
        return b"".join([sse_of(event) for event in mine]) if mine else None

    async def _status(self) -> bytes:
        service = self._call.service
        async with service.quotas.reading.turn(self._call.principal.key_id, COST):
            answer = await service.leases.ask(self._call.principal, Inspect(self._key))
        self._looked_at = service.now()
        if not isinstance(answer.reply, Status):
            return b""
        service.activity.keys.observe(answer.reply, answer.sent)
        return sse("status", to_wire(answer.reply))

    def alive(self) -> bytes:
        return ALIVE


ROUTES = (
    Operation(
        method="GET",
        path="/v1/watch/locks/{name}",
        needs=on_path(Scope.READ),
        handler=watch,
        summary="Who holds it, now and after each change",
        query=LookQuery,
        answers={200: str},
        problems=(429, 503),
        media="text/event-stream",
    ),
)
