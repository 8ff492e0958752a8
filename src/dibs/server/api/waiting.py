"""Acquire with `wait=`: the request stays in the queue until it is granted, times out, or is ended."""

import asyncio
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from starlette.requests import ClientDisconnect

from dibs.errors import AcquireTimeout, DibsError
from dibs.locks.acquire import AcquireAttempt
from dibs.locks.messages import describe_holders
from dibs.locks.requests import AcquireRequest, Grant
from dibs.model import (
    Acquire,
    Failed,
    Gone,
    Granted,
    Queued,
    Refused,
    Renew,
    Renewed,
    Reply,
)
from dibs.server.api.problems import ApiProblem, unauthenticated
from dibs.server.api.routing import Caller
from dibs.server.key_changes import KeyStates
from dibs.server.leases import LeaseService
from dibs.server.quotas import Quotas
from dibs.server.shutdown import End, Endings, shutting_down
from dibs.stores.http.wire import holders_to_wire


class AcquiredLease(NamedTuple):
    """A lease, and the seconds that are left of it."""

    id: str
    token: int
    slots: tuple[int, ...]
    remaining: float


@dataclass(eq=False)
class WaitingAcquires:
    """Requests that wait in the queue of a key."""

    _leases: LeaseService
    _quotas: Quotas
    _endings: Endings
    _keys: KeyStates
    """Gets a report when a request enters the queue, and when it ends without a grant."""

    async def acquire(
        self, caller: Caller, command: Acquire, wait: float, *, keep_id: bool
    ) -> AcquiredLease:
        """Acquire within `wait` seconds. `keep_id`: the lease id is the caller's own.

        A caller who hangs up leaves the queue. With an id of its own it stays: the same request may be at
        another server by now, and may hold the lease. Only the caller gives such an id up.
        Raises `AcquireTimeout`, `ClientDisconnect` if the caller hangs up, and `ApiProblem` if the server
        is about to stop or the caller's key or session ends.
        """
        leases, key_id = self._leases, caller.principal.key_id
        with self._quotas.one_more(key_id, "waiters"), ExitStack() as turn:
            await self._quotas.acquiring.begin(key_id, 1)
            turn.callback(self._quotas.acquiring.end, key_id, 1)

            def begin_to_wait() -> None:
                turn.close()
                if isinstance(attempt.last_reply, Queued):
                    self._keys.entered(command, wait)

            attempt = AcquireAttempt(
                leases.runtime,
                _request(command),
                lease_id=command.id,
                keep_id=keep_id,
                before_wait=begin_to_wait,
            )
            loop = asyncio.get_running_loop()
            task = asyncio.Task(attempt.run(wait), loop=loop, eager_start=True)
            try:
                if not task.done():
                    with leases.tracing.waiting() if leases.tracing else nullcontext():
                        await self._until_ended(caller, command.key, task)
            finally:
                if attempt.is_doubtful:
                    leases.late_copies.add(command.id)
                if not (keep_id or _is_granted(task)):
                    self._keys.left(command.key, command.id)
                if not keep_id and _is_too_late(task):
                    leases.give_up(command.key, task.result().id)
        try:
            grant = task.result()
        except DibsError:
            if attempt.trouble is not None:
                leases.unanswered(command)
            reply = attempt.last_reply  # no wait can change these two
            if isinstance(reply, Refused) and reply.reason == "too_large":
                raise not_acquired(reply, command.key) from None
            if isinstance(reply, Gone) and keep_id:
                raise not_acquired(reply, command.key) from None
            raise
        try:
            lease = await self._lease(command, grant)
        except BaseException:
            if not keep_id:
                leases.give_up(command.key, grant.id)
            raise
        granted = Granted(lease.token, lease.slots, lease.remaining)
        leases.observe(caller.principal, replace(command, id=lease.id), granted)
        return lease

    async def _until_ended(self, caller: Caller, key: bytes, task: asyncio.Task[Grant]) -> None:
        """Wait for the end of the attempt. If the request is ended first, cancel it and raise why."""
        ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()

        def end(why: End) -> None:
            if not ended.done():
                ended.set_result(why)

        try:
            with self._endings.watching(caller, end):
                if self._leases.tracing is not None:
                    await self._leases.tracing.look(key)
                await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return
            task.cancel()
            await asyncio.wait((task,))
            raise _error_for(ended.result())
        finally:
            if not task.done():
                task.cancel()  # this task itself was cancelled

    async def _lease(self, command: Acquire, grant: Grant) -> AcquiredLease:
        """The lease of a grant; one by notification is confirmed first, for all of its ttl."""
        ttl, since = command.ttl, grant.since
        if grant.claim_by is not None:
            renew = Renew(command.key, grant.id, ttl)
            answer = await self._leases.runtime.call(renew)
            match answer.reply:
                case Renewed(ttl) | Granted(grant.token, _, ttl):
                    since = answer.sent
                case _:
                    raise AcquireTimeout(
                        "the server was busy and missed its turn in the queue", key=command.key
                    )
        left = self._leases.remaining(ttl, since)
        return AcquiredLease(grant.id, grant.token, grant.slots, left)


def _request(command: Acquire) -> AcquireRequest:
    return AcquireRequest(
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


def _is_too_late(task: asyncio.Task[Grant]) -> bool:
    """Whether it was granted while it was being cancelled. Then it must be released."""
    return _is_granted(task) and task.cancelling() > 0


def _is_granted(task: asyncio.Task[Grant]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _error_for(why: End) -> Exception:
    match why:
        case "draining":
            return shutting_down()
        case "key":
            return unauthenticated("the API key was revoked or expired while the request waited")
        case "session":
            return unauthenticated("the session ended while the request waited")
        case "token":
            return unauthenticated("the token expired while the request waited")
        case "gone":
            return ClientDisconnect()


# -- replies as problems ----------------------------------------------------------------------------


def not_acquired(reply: Reply, key: bytes) -> ApiProblem:
    """A problem for the reply to an acquire that was not granted."""
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
            return still_waiting(reply)
        case Gone():
            return ApiProblem("lost", "this lease id has ended: acquire with a new id")
        case _:
            return failure(reply)


def still_waiting(reply: Queued) -> ApiProblem:
    """A problem for an id that is in the queue, and holds nothing yet."""
    return ApiProblem(
        "waiting",
        f"this lease id is waiting in the queue, {reply.position} ahead of it",
        retry_after=reply.recheck_in,
        position=reply.position,
    )


def failure(reply: Reply) -> ApiProblem:
    """A problem for a command that the store could not apply."""
    if isinstance(reply, Failed):
        if reply.reason == "invalid":
            return ApiProblem("malformed", reply.detail)
        return ApiProblem("unavailable", reply.detail, retry_after=1)
    return ApiProblem("unavailable", f"the store answered with {type(reply).__name__}")
