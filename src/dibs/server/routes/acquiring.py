"""Acquiring: at once or not at all, or with a wait in the queue."""

import asyncio
from contextlib import AsyncExitStack, nullcontext
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from dibs.errors import AcquireTimeout, BackendUnavailable
from dibs.locks.acquire import AcquireAttempt
from dibs.locks.messages import describe_holders
from dibs.locks.requests import AcquireRequest, Grant
from dibs.model import MANY, Acquire, Gone, Granted, Queued, Refused, Renew, Renewed, Reply
from dibs.runtime.port import Runtime, TimedReply
from dibs.server.api.problems import ApiProblem, unauthenticated
from dibs.server.api.responses import json_response
from dibs.server.api.schemas import AcquireQuery, Held, moment
from dibs.server.call import Call
from dibs.server.drain import End, draining, ends_of
from dibs.server.limits import MAX_OWNER
from dibs.server.routes.telling import check_text, check_ttl, failure, in_line
from dibs.stores.http.wire import holders_to_wire


class Had(NamedTuple):
    """What was acquired, and for how long from now."""

    id: str
    token: int
    slots: tuple[int, ...]
    remaining: float


class _Line(AcquireAttempt):
    """A place in line under an id that is used once."""

    __slots__ = ("_brought", "_turn")

    def __init__(
        self,
        runtime: Runtime,
        ask: AcquireRequest,
        lease_id: str,
        turn: AsyncExitStack,
        *,
        brought: bool,
    ) -> None:
        super().__init__(runtime, ask, lease_id=lease_id)
        self._brought = brought
        self._turn = turn  # among the acquires: over as soon as it waits

    async def _in_turn(self, wait: float | None, until: float, answer: TimedReply) -> Grant:
        await self._turn.aclose()
        return await super()._in_turn(wait, until, answer)

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
                "the server was paused and missed its turn in the queue", key=self._request.key
            )
        raise ApiProblem("lost", "this lease id has ended: acquire with a new id")

    async def _wait_outside(self, reply: Refused, until: float) -> None:
        if reply.reason == "too_large":
            self._over = True
            raise ApiProblem("too-large", "more units requested than the declared capacity")
        await super()._wait_outside(reply, until)


async def acquire_in_line(
    call: Call, ask: AcquireRequest, lease_id: str, wait: float, *, brought: bool
) -> Had:
    """Acquire within `wait` seconds. `brought`: the id is the caller's own.

    A caller who hangs up leaves the queue, unless the id is his own: the same request may be at another
    server by now, and he may hold. Such an id is given up by its caller only.
    Raises `AcquireTimeout`, `ClientDisconnect` when the caller hangs up, and `ApiProblem` when the server is
    about to stop or the caller's key or session ends.
    """
    service, key_id = call.service, call.principal.key_id
    with service.quotas.one_more(key_id, "waiters"):
        turn = AsyncExitStack()
        await turn.enter_async_context(service.quotas.acquiring.turn(key_id))
        line = _Line(service.runtime, ask, lease_id, turn, brought=brought)
        loop = asyncio.get_running_loop()
        place = asyncio.Task(line.run(wait), loop=loop, eager_start=True)
        try:
            if not place.done():
                spans = service.spans
                with nullcontext() if spans is None else spans.waiting():
                    await _until_any(call, ask, place)
        finally:
            await turn.aclose()
            if line.is_doubtful:
                service.leases.late_copies.add(lease_id)
            if not brought and _is_too_late(place):
                service.leases.give_up(ask.key, lease_id)
        grant = place.result()
    try:
        if grant.claim_by is None:
            left = service.leases.remaining(ask.ttl, grant.since)
        else:
            left = await _claimed(call, ask, grant)
    except BaseException:
        if not brought:
            service.leases.give_up(ask.key, grant.id)
        raise
    return Had(grant.id, grant.token, grant.slots, left)


def _is_too_late(place: asyncio.Task[Grant]) -> bool:
    """It was granted as it was being cancelled: nobody would have it until its ttl is over."""
    if not place.done() or place.cancelled() or place.exception() is not None:
        return False
    return place.cancelling() > 0


async def _until_any(call: Call, ask: AcquireRequest, place: asyncio.Task[Grant]) -> None:
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
            return ClientDisconnect()


async def _claimed(call: Call, ask: AcquireRequest, grant: Grant) -> float:
    """A pushed grant stands for a short while: have the store confirm it for all of its ttl."""
    service = call.service
    answer = await service.runtime.call(Renew(ask.key, grant.id, ask.ttl))
    match answer.reply:
        case Renewed(ttl) | Granted(grant.token, _, ttl):
            return service.leases.remaining(ttl, answer.sent)
    raise AcquireTimeout("the server was busy and missed its turn in the queue", key=ask.key)


async def acquire(call: Call) -> Response:
    """Take it, or wait in line for it."""
    asked = call.query(AcquireQuery)
    service, command = call.service, _command(call, asked)
    brought = asked.id is not None
    service.quotas.check_lease(call.principal.key_id, (command.key, command.id))
    if asked.wait:
        had = await _in_line(call, command, asked.wait, brought=brought)
    else:
        had = await _try(call, command, brought=brought)
    if not brought and call.has_hung_up():  # or nobody would have it until its ttl is over
        service.leases.give_up(command.key, had.id)
        raise ClientDisconnect
    return _held(call, had, command)


def _command(call: Call, asked: AcquireQuery) -> Acquire:
    """What is asked for. Raises `ApiProblem` for what can't be."""
    service = call.service
    kind, units, capacity = _wanted(asked, service.limits.max_capacity)
    check_ttl(service.limits, asked.ttl)
    longest = service.limits.max_wait
    if asked.wait > longest:
        raise ApiProblem("malformed", f"`wait` must be at most {longest:g} seconds; then ask again")
    check_text("client-id", asked.client_id, MAX_OWNER)
    check_text("note", asked.note)
    lease_id = asked.id or service.leases.late_copies.new_id()
    return Acquire(
        call.key(kind),
        lease_id,
        asked.client_id or call.principal.name,
        asked.ttl,
        units,
        capacity,
        queue=bool(asked.wait),
        priority=asked.priority,
        note=asked.note,
        address=call.ip,
        trace=service.trace,
    )


def _wanted(asked: AcquireQuery, most: int) -> tuple[str, int, int]:
    """The kind of key, the units, and the capacity, at most `most`. Raises `ApiProblem`, 400."""
    if asked.mode is not None:
        if asked.kind not in (None, "rwlock") or asked.capacity or asked.units:
            raise ApiProblem(
                "malformed", "`mode` is for a readers-writer lock, without `capacity` and `units`"
            )
        return "rwlock", MANY if asked.mode == "write" else 1, MANY
    if asked.kind == "rwlock":
        raise ApiProblem("malformed", "a readers-writer lock needs mode=read or mode=write")
    if asked.capacity is not None or asked.kind == "semaphore":
        if asked.kind not in (None, "semaphore"):
            raise ApiProblem(
                "malformed", f"a {asked.kind} has no capacity: only a semaphore has one"
            )
        if asked.capacity is None:
            raise ApiProblem("malformed", "a semaphore needs `capacity`")
        if asked.capacity > most:
            raise ApiProblem(
                "malformed", f"`capacity` must be at most {most}, not {asked.capacity}"
            )
        units = asked.units or 1
        if units > asked.capacity:
            raise ApiProblem(
                "malformed", f"`units` is {units}, more than `capacity` {asked.capacity}"
            )
        return "semaphore", units, asked.capacity
    if asked.units is not None and asked.units != 1:
        raise ApiProblem("malformed", "`units` is for a semaphore: give its `capacity` too")
    return asked.kind or "lock", 1, 1


async def _in_line(call: Call, command: Acquire, wait: float, *, brought: bool) -> Had:
    """Wait until it is free, and tell those who watch."""
    ask = AcquireRequest(
        command.key,
        command.owner,
        command.ttl,
        command.units,
        command.capacity,
        command.priority,
        command.note,
        address=command.address,
        trace=command.trace,
        detects=False,
    )
    had = await acquire_in_line(call, ask, command.id, wait, brought=brought)
    call.service.leases.observe(
        call.principal, command, Granted(had.token, had.slots, had.remaining)
    )
    return had


async def _try(call: Call, command: Acquire, *, brought: bool) -> Had:
    """Take it if it is free."""
    service = call.service
    async with service.quotas.acquiring.turn(call.principal.key_id):
        try:
            answer = await service.leases.ask(call.principal, command)
            reply = answer.reply
            left = (
                service.leases.remaining(reply.ttl, answer.sent) if type(reply) is Granted else 0.0
            )
        except BackendUnavailable:
            if not brought:  # nobody else knows this id, so nobody would ever release it
                service.leases.give_up(command.key, command.id)
            raise
    if type(reply) is not Granted:
        raise not_acquired(reply, command.key)
    return Had(command.id, reply.token, reply.slots, left)


def _held(call: Call, had: Had, command: Acquire) -> Response:
    remaining = max(had.remaining, 0.0)
    kind = command.key.partition(b":")[0]
    held = Held(
        had.id,
        kind.decode(),
        had.token,
        command.ttl,
        round(remaining, 3),
        moment(remaining),
        command.units if command.units < MANY else 1,
        had.slots,
    )
    return json_response(
        held, 200, (b"location", b"%b?kind=%b" % (call.request.scope["raw_path"], kind))
    )


def not_acquired(reply: Reply, key: bytes) -> ApiProblem:
    """Why an acquire got nothing."""
    match reply:
        case Refused(reason="too_large"):
            return ApiProblem("too-large", "more units requested than the declared capacity")
        case Refused(reason="queue_full"):
            return ApiProblem("limit", "its queue is full", retry_after=reply.recheck_in)
        case Refused():
            return ApiProblem(
                "held",
                describe_holders(key, reply.holders, None),
                retry_after=reply.recheck_in,
                holders=holders_to_wire(reply.holders),
            )
        case Queued():
            return in_line(reply)
        case Gone():
            return ApiProblem("lost", "this lease id has ended: acquire with a new id")
        case _:
            return failure(reply)
