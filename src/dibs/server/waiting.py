"""Long polls: a request that waits in line for a lock, and leaves the line when its caller goes.

Not so under an id that the caller has brought: the same request may be at another server by now, sent
again, and what looks here like a caller who has gone may be one who holds. So what has such an id is given
up by its caller only; a place whose caller is gone for good is passed over once it has been silent.
"""

import asyncio
from contextlib import nullcontext
from typing import NamedTuple

from dibs.errors import AcquireTimeout
from dibs.model import Granted, Refused, Renew, Renewed
from dibs.primitives.acquire import Acquiring
from dibs.primitives.ask import Ask, Grant
from dibs.runtime.port import Runtime
from dibs.server.call import Call, Gone
from dibs.server.drain import draining
from dibs.server.endings import End, ends_of
from dibs.server.problems import Problem, unauthenticated


class Had(NamedTuple):
    """What was acquired, and for how long from now."""

    id: str
    token: int
    slots: tuple[int, ...]
    remaining: float


class _Line(Acquiring):
    """A place in line under an id that is used once."""

    __slots__ = ("_brought",)

    def __init__(self, runtime: Runtime, ask: Ask, lease_id: str, *, brought: bool) -> None:
        super().__init__(runtime, ask, lease_id=lease_id)
        self._brought = brought

    @property
    def is_doubtful(self) -> bool:
        """A copy of what it has asked for may still be on its way."""
        return self._doubtful or self._in_flight

    def _abandon(self) -> None:
        if not self._brought:
            super()._abandon()

    async def _leave_queue(self) -> None:
        if not self._brought:
            await super()._leave_queue()

    def _begin_anew(self) -> None:
        self._over = True
        if not self._brought:
            raise AcquireTimeout(
                "the server was paused and missed its turn in the queue", key=self._ask.key
            )
        raise Problem("lost", "this lease id has ended: acquire with a new id")

    async def _wait_outside(self, reply: Refused, until: float) -> None:
        if reply.reason == "too_large":
            self._over = True
            raise Problem("too-large", "more units requested than the declared capacity")
        await super()._wait_outside(reply, until)


async def acquire_in_line(
    call: Call, ask: Ask, lease_id: str, wait: float, *, brought: bool
) -> Had:
    """Acquire within `wait` seconds. `brought`: the id is the caller's own.

    Raises `AcquireTimeout`, `Gone` when the caller hangs up, and `Problem` when the server is about
    to stop or the caller's key or session ends.
    """
    service = call.service
    with (
        service.accounts.waiting,
        service.accounts.one_more(call.principal.key_id, "waiters"),
    ):
        line = _Line(service.runtime, ask, lease_id, brought=brought)
        loop = asyncio.get_running_loop()
        place = asyncio.Task(line.run(wait), loop=loop, eager_start=True)
        try:
            if not place.done():
                spans = service.spans
                with nullcontext() if spans is None else spans.waiting():
                    await _until_any(call, ask, place)
        finally:
            if line.is_doubtful:
                service.doubts.add(lease_id)
            if not brought and _is_too_late(place):
                service.give_up(ask.key, lease_id)
        grant = place.result()
    try:
        if grant.claim_by is None:
            left = service.left(ask.ttl, grant.since)
        else:
            left = await _claimed(call, ask, grant)
    except BaseException:
        if not brought:
            service.give_up(ask.key, grant.id)
        raise
    return Had(grant.id, grant.token, grant.slots, left)


def _is_too_late(place: asyncio.Task[Grant]) -> bool:
    """It was granted as it was being cancelled: nobody would have it until its ttl is over."""
    if not place.done() or place.cancelled() or place.exception() is not None:
        return False
    return place.cancelling() > 0


async def _until_any(call: Call, ask: Ask, place: asyncio.Task[Grant]) -> None:
    """Wait until there is a grant, or until it is wanted no more; then the place is given up."""
    service = call.service
    ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def end(why: End) -> None:
        if not ended.done():
            ended.set_result(why)

    try:
        with ends_of(call, end):
            if service.spans is not None:
                await service.spans.look(ask.key)
            await asyncio.wait((place, ended), return_when=asyncio.FIRST_COMPLETED)
        if place.done():
            return
        place.cancel()
        await asyncio.wait((place,))
        raise _said(ended.result())
    finally:
        if not place.done():
            place.cancel()  # we were cancelled ourselves


def _said(why: End) -> Exception:
    """What is raised for an end."""
    match why:
        case "draining":
            return draining()
        case "key":
            return unauthenticated("the API key was revoked or expired while the request waited")
        case "session":
            return unauthenticated("the session ended while the request waited")
        case "gone":
            return Gone()


async def _claimed(call: Call, ask: Ask, grant: Grant) -> float:
    """A pushed grant stands for a short while: have the store confirm it for all of its ttl."""
    service = call.service
    answer = await service.runtime.call(Renew(ask.key, grant.id, ask.ttl))
    match answer.reply:
        case Renewed(ttl) | Granted(grant.token, _, ttl):
            return service.left(ttl, answer.sent)
    raise AcquireTimeout("the server was busy and missed its turn in the queue", key=ask.key)
